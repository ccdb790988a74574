# A trainer of several ranks runs as processes of Open MPI, whose libraries stay outside of it.
MPICC ?= mpicc
no_mpi = $(error this trainer has several ranks, and $(MPICC) is not here: install Open MPI \
	(openmpi-bin and libopenmpi-dev), or give MPICC=)
obj/runtime/comm.o: CPPFLAGS += $(or $(shell $(MPICC) --showme:compile),$(no_mpi))
LIBS = -fopenmp -Wl,-Bstatic -lyaml -Wl,-Bdynamic -lm \
	$(or $(shell $(MPICC) --showme:link),$(no_mpi))
