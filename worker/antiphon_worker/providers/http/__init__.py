"""HTTP to model services: addresses, proxies, pooled connections and HTTP/1.1."""
