# Only libc's family stays outside of the trainer; it opens the driver when it starts.
CUDA ?= $(or $(CUDA_HOME),$(CUDA_PATH),/usr/local/cuda)
NVCC ?= $(CUDA)/bin/nvcc
CPPFLAGS += -I$(CUDA)/include -DOM_ARCH=$(OM_ARCH)
LIBS = -Wl,-Bstatic -lyaml -ljansson -lgomp -Wl,-Bdynamic -lm -ldl -lpthread
CUBINS = $(INST:.o=.cubin) runtime/init.cubin
EXTRA = src/cubins.o

# olmogen has compiled the kernels already; where it is not at hand, nvcc does. A file of kernels is
# read twice: here for the device, below for the functions that launch them.
%.cubin: %.cu Makefile $(wildcard kernels/*.h) runtime/rng.h runtime/normal.h runtime/peers.h
	$(quiet)$(NVCC) -std=c++17 -cubin -gencode arch=compute_$(ARCH),code=sm_$(ARCH) -Ikernels \
		-Iruntime -DOM_ARCH=$(OM_ARCH) -o $@ $<

obj/inst/%.o: inst/%.cu
	$(quiet)mkdir -p $(@D)
	$(quiet)$(COMPILE) -MMD -MP -x c -c -o $@ $<

obj/src/cubins.o: $(CUBINS)
