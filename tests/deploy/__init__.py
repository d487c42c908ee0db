"""Tests of deploy/: what one puts around a gateway, run with the very programs it is for."""
