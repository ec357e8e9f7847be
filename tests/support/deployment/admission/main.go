// Applies a MutatingAdmissionPolicy's JSONPatch expression to a pod with the API server's own code.
// Standard input: {"expression": "...", "pod": {...}}. Standard output: the pod that the API server would store.
package main

import (
	"context"
	"encoding/json"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

func must[T any](value T, err error) T {
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	return value
}

func main() {
	var input struct {
		Expression string
		Pod        corev1.Pod
	}
	must(0, json.NewDecoder(os.Stdin).Decode(&input))
	compiler := must(cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())))
	evaluator := compiler.CompileMutatingEvaluator(
		&patch.JSONPatchCondition{Expression: input.Expression},
		cel.OptionalVariableDeclarations{HasPatchTypes: true}, environment.StoredExpressions)
	scheme := runtime.NewScheme()
	must(0, corev1.AddToScheme(scheme))
	resource, kind := corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod")
	request := patch.Request{
		MatchedResource: resource,
		VersionedAttributes: &admission.VersionedAttributes{
			Attributes: admission.NewAttributesRecord(&input.Pod, nil, kind, input.Pod.Namespace, input.Pod.Name, resource,
				"", admission.Create, &metav1.CreateOptions{}, false, nil),
			VersionedKind:   kind,
			VersionedObject: &input.Pod,
		},
		ObjectInterfaces:  admission.NewObjectInterfacesFromScheme(scheme),
		OptionalVariables: cel.OptionalVariableBindings{},
	}
	patched := must(patch.NewJSONPatcher(evaluator).Patch(context.Background(), request, celconfig.RuntimeCELCostBudget))
	must(0, json.NewEncoder(os.Stdout).Encode(patched))
}
