"""The caller's half of a fleet: sessions that live on a host, used as if they were here."""
