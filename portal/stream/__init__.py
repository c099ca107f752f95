"""The portal's data plane: TLS, routing by host name, reverse proxy and byte relay. Its own process, so that no other work jerks a desktop."""
