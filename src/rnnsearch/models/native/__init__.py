"""Native twins: C++ built by the machine's own compiler at first use, and kept; the plain path where there is none."""
