# Only libc's family stays outside of the trainer; it opens the driver when it starts.
CUDA ?= $(or $(CUDA_HOME),$(CUDA_PATH),/usr/local/cuda)
NVCC ?= $(CUDA)/bin/nvcc
CPPFLAGS += -I$(CUDA)/include -DOM_ARCH=$(OM_ARCH)
LIBS = -Wl,-Bstatic -lyaml -ljansson -lgomp $(NCCL_LIBS) -Wl,-Bdynamic -lm -ldl -lpthread
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

# NCCL, of trainers of several ranks, is looked for when they start: beside them, then where the
# system has it. BUNDLE=1 puts this machine's beside the trainer, STATIC=1 links its archive in.
ifneq ($(filter %/nccl.o,$(RUNTIME)),)
nccl_folders = $(if $(NCCL_HOME),$(NCCL_HOME)/lib $(NCCL_HOME)/lib64,$(CUDA)/lib64 \
	$(patsubst %/,%,$(dir $(filter /%,$(shell $(CC) -print-file-name=$(1))))))
find_nccl = $(or $(firstword $(wildcard $(addsuffix /$(1),$(nccl_folders)))),$(error there is no \
	$(1) in $(nccl_folders): install NCCL ($(2)), or set NCCL_HOME to the folder whose lib \
	has it))
BUNDLED = libnccl.so.2
ifneq ($(STATIC),)
NCCL_LIBS := $(call find_nccl,libnccl_static.a,libnccl-dev) -L$(CUDA)/lib64 -lcudart_static \
	-lstdc++ -lrt
LDFLAGS += -static-libgcc
obj/runtime/nccl.o: CPPFLAGS += -DOM_NCCL_LINKED
TOOLS = $(NCCL_LIBS)
endif
ifneq ($(BUNDLE),)
trainer: | $(BUNDLED)
$(BUNDLED): $(call find_nccl,$(BUNDLED),libnccl2)
	$(quiet)cp -L $< $@.tmp && mv $@.tmp $@
endif
endif
