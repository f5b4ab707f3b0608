"""What tests of several folders share; what one folder uses alone lies beside its tests."""
