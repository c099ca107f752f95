"""The portal for programs that speak the Model Context Protocol: tools and resources, each of which is a request to the REST API."""
