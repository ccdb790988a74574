# A trainer of one rank is one static file.
LDFLAGS ?= -static
LIBS = -fopenmp -lyaml -ljansson -lm
