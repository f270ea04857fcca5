"""The shared intermediate representation: graphs of registered ops."""
