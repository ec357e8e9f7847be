"""Snapshots of a cluster in the bucket: settings of topics, ACLs, groups' offsets and schemas."""
