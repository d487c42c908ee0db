"""The other gateways of a service: those that are alive, and what is sent on to them."""
