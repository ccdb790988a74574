void trace(const char *name, int n, ...);
