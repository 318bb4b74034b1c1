"""The transfer service: immutable KV blobs in one host's shared memory, under leases."""
