"""What the processor can do beyond Python: ciphers and checksums as compiled kernels, and the
folder that keeps compiled kernels between processes.

Every kernel tests itself against a library before it is used; where the processor lacks an
instruction, or the test fails, the library does the work.
"""
