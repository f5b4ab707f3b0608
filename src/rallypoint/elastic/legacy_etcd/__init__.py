"""The older protocol on etcd's API v2, which nodes of PyTorch's own backend `etcd` speak as well."""
