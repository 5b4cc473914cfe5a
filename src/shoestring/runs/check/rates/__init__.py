"""Measure the rates of this machine's GPU or CPU: kernels, the host, copies. Imported only where torch may be."""
