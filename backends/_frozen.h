/* Frozen dataclasses with slots, put together without their constructors: whoever does so has checked what goes in.

A constructor in Python takes ten times as long as all that a value holds, and a planning makes ten values a segment. */

#ifndef TIEREDSTORE_FROZEN_H
#define TIEREDSTORE_FROZEN_H

#include <Python.h>
#include <structmember.h>

/* Where in a value the slot of this name is; TypeError for a type that has no such slot. */
static Py_ssize_t slot_of(PyObject *type, const char *name) {
    PyObject *own = PyObject_GetAttrString(type, name);
    if (own == NULL)
        return -1;
    if (!Py_IS_TYPE(own, &PyMemberDescr_Type) || ((PyMemberDescrObject *)own)->d_member->type != T_OBJECT_EX) {
        Py_DECREF(own);
        PyErr_Format(PyExc_TypeError, "%S has no slot %s", type, name);
        return -1;
    }
    Py_ssize_t place = ((PyMemberDescrObject *)own)->d_member->offset;
    Py_DECREF(own);
    return place;
}

/* A value whose slots are all empty still. */
static inline PyObject *empty_value(PyObject *type) {
    return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
}

/* Once for each slot of a value that nobody else has seen. */
static inline void set_slot(PyObject *value, Py_ssize_t place, PyObject *content) {
    Py_INCREF(content);
    *(PyObject **)((char *)value + place) = content;
}

static inline PyObject *get_slot(PyObject *value, Py_ssize_t place) {
    PyObject *content = *(PyObject **)((char *)value + place);
    if (content == NULL)
        PyErr_SetString(PyExc_AttributeError, "a slot is empty");
    else
        Py_INCREF(content);
    return content;
}

/* A frozen value of values that lead nowhere back is part of no cycle: the garbage collector need not visit it, as it
does not visit a tuple of numbers. */
static inline void leave_uncollected(PyObject *value) {
    PyObject_GC_UnTrack(value);
}

#endif
