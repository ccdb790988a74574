# A trainer of several ranks runs as processes of Open MPI, whose libraries stay outside of it.
MPICC ?= mpicc
mpi_compile := $(shell $(MPICC) --showme:compile 2>/dev/null)
mpi_link := $(shell $(MPICC) --showme:link 2>/dev/null)
no_mpi = $(error this trainer has several ranks, and $(MPICC) is not here: install Open MPI \
	(openmpi-bin and libopenmpi-dev), or give MPICC=)
TOOLS = $(MPICC) $(mpi_compile) $(mpi_link)
obj/runtime/comm.o: CPPFLAGS += $(or $(mpi_compile),$(no_mpi))
LIBS = -Wl,-Bstatic -lyaml -ljansson -lgomp -Wl,-Bdynamic -lm -ldl -lpthread \
	$(or $(mpi_link),$(no_mpi))
