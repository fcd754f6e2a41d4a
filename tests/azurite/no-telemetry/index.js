// Azurite loads this module, but uses it only where telemetry is on.
