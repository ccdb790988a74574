# A trainer of one rank is one static file.
LDFLAGS ?= -static
LIBS = -lyaml -ljansson -l:libgomp.a -lm -ldl -lpthread
