# olmogen: "make help" lists the targets.

CC = gcc
CFLAGS ?= -O2 -g
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
DATADIR ?= $(PREFIX)/share
PKG_CONFIG ?= pkg-config
SAN ?=
SEED ?= $(shell date +%s)
V ?= 0
BASE ?= HEAD

B = build$(if $(SAN),/san)
quiet = $(if $(filter 1,$(V)),,@)
san_flags = $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)

# Lua, libyaml and jansson go into olmogen from their archives, so that it is one file.
LUA_CFLAGS = $(shell $(PKG_CONFIG) --cflags lua5.4)
LIBS = -Wl,-Bstatic -llua5.4 -lyaml -ljansson -Wl,-Bdynamic -lm -ldl

STD = -std=c11 -D_POSIX_C_SOURCE=200809L
WARN = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
ALL_CFLAGS = $(STD) $(WARN) -Igenerator -Iruntime $(LUA_CFLAGS) $(CFLAGS) $(san_flags)

# how files from outside are read is the same in olmogen and in trainers
GEN_SRC = $(filter-out generator/emit/embed.c,$(sort $(wildcard generator/*.c generator/*/*.c))) \
	runtime/file.c runtime/group.c runtime/json.c runtime/yaml_limits.c runtime/hf_config.c runtime/hf_family.c
GEN_OBJ = $(GEN_SRC:%.c=$(B)/%.o) $(B)/embedded.o
EMBEDDED = LICENSE generator/lang/library.lua $(sort $(wildcard generator/page/* runtime/page/* templates/* runtime/*.[ch] runtime/*/*.c* runtime/*/*.h runtime/*.def \
	kernels/*.h kernels/*/*.h))
FORMATTED = $(wildcard generator/*.[ch] generator/*/*.[ch] runtime/*.[ch] runtime/*/*.[ch] kernels/*.h kernels/*/*.h tests/*/*.[ch])

all: $(B)/olmogen

$(B)/olmogen: $(GEN_OBJ)
	$(quiet)$(CC) $(san_flags) $(LDFLAGS) -o $@ $(GEN_OBJ) $(LIBS)

# Headers of libraries, which distributions have in packages of their own: asked for once, by name.
HEADERS = lua.h yaml.h jansson.h
$(B)/headers:
	$(quiet)mkdir -p $(@D)
	$(quiet)for h in $(HEADERS); do \
		echo "#include <$$h>" | $(CC) $(LUA_CFLAGS) $(CFLAGS) -E - >/dev/null 2>$@.log && continue; \
		echo "make: $(CC) finds no $$h: run 'make deps', which installs what is missing" \
			"($@.log has what $(CC) said)" >&2; \
		exit 1; \
	done
	$(quiet)touch $@

$(GEN_OBJ): | $(B)/headers

$(GEN_SRC:%.c=$(B)/%.o): $(B)/%.o: %.c
	$(quiet)mkdir -p $(@D)
	$(quiet)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(B)/embed: generator/emit/embed.c
	$(quiet)mkdir -p $(@D)
	$(quiet)$(CC) $(STD) -O1 -Wall -Wextra -o $@ $<

# A folder is newer than the table when a file came or went.
$(B)/embedded.c: $(B)/embed $(EMBEDDED) templates generator/page runtime kernels $(wildcard runtime/*/ kernels/*/)
	$(quiet)$(B)/embed $(EMBEDDED) > $@.tmp && mv $@.tmp $@

$(B)/embedded.o: $(B)/embedded.c
	$(quiet)$(CC) $(STD) -Igenerator -Iruntime -c -o $@ $<

# ---- tests ----

# a stage's unit tests: tests/unit/STAGE_test.c, suite STAGE; those of a part of it alone: STAGE_PART; search.c's
STAGES = base lang graph shard plan plan_expect plan_fuse search

$(B)/tests/%: tests/unit/%.c $(wildcard tests/unit/*.h) $(GEN_OBJ)
	$(quiet)mkdir -p $(@D)
	$(quiet)$(CC) $(ALL_CFLAGS) -o $@ $< $(filter-out $(B)/generator/main.o,$(GEN_OBJ)) $(LIBS)

# two checkpoints against each other, in suites that train
$(B)/tests/compare: tests/parallel/compare.c $(wildcard runtime/*.c runtime/one/*.c runtime/cpu/*.c runtime/*.h)
	$(quiet)mkdir -p $(@D)
	$(quiet)$(CC) $(STD) -D_DEFAULT_SOURCE -O1 -Wall -Wextra -Werror -fopenmp -Iruntime -o $@ $(filter %.c,$^) -lyaml -ljansson -lm

# What the README calls the test command: sets up what it needs, ends with "N passed, N failed".
check: deps
	$(quiet)sh tests/deps.sh chromium
	$(quiet)$(MAKE) --no-print-directory -j2 all build/tests/streams build/tests/compare
	$(quiet)$(MAKE) --no-print-directory -j2 SAN=address,undefined CFLAGS='-O1 -g' all \
		$(STAGES:%=build/san/tests/%_test)
	$(quiet)sh tests/run.sh $(ONLY)

# The same suites at full length: what takes long and rarely finds anything.
bigcheck: export FULL = 1
bigcheck: export SEED := $(SEED)
bigcheck: check

# Where PyTorch and transformers are: fresh random models, compared the same way as the committed ones, and configurations.
check-peer: all
	rm -rf build/peer && python3 tests/peer/make.py build/peer $(SEED)
	sh tests/peer/run.sh build/olmogen build/check/peer build/peer
	python3 tests/peer/configs.py build/olmogen build/check/peer/read $(SEED)

# What reads files from outside, by libFuzzer; "make check" does the same for seconds, without it.
FUZZ_SECONDS ?= 60
fuzz: all
	sh tests/fuzz/run.sh fuzz build/fuzz $(FUZZ_SECONDS)

# Kernels and small trainers are built anywhere; where there is no GPU their tests are skipped, with a reason.
check-gpu: all build/tests/streams
	sh tests/gpu/build.sh build/gpu
	sh tests/gpu/build.sh build/gpu peers
	sh tests/gpu/models.sh build/olmogen build/gpu
	sh tests/gpu/run.sh build/gpu
	sh tests/gpu/ranks.sh build/gpu

# Kernels and OLMoE-1B-7B's step beside cuBLAS, cuDNN and transformers, on one H200.
bench-gpu: all build/tests/streams
	sh tests/gpu/build.sh build/gpu
	sh tests/gpu/build.sh build/gpu peers
	build/olmogen -o build/gpu/olmoe4 models/olmoe-1b-7b.lua -D global=4
	build/olmogen -o build/gpu/olmoe32 models/olmoe-1b-7b.lua -D global=32
	build/tests/streams models/olmoe-1b-7b.lua cuda:h200 2 build/gpu/streams32 global=32
	for s in dense fine windows series; do build/olmogen -o build/gpu/$$s tests/gpu/shapes.lua -D shape=$$s || exit 1; done
	for n in 1 32; do build/olmogen -o build/gpu/rows$$n tests/gpu/shapes.lua -D shape=series -D layers=16 -D length=1024 \
		-D tokens=4096 -D rows=$$n || exit 1; done
	build/olmogen -o build/gpu/coarse models/moe-8l.lua -D experts=8 -D data=1 -D expert=1 -D global=16
	[ "$$(ls /dev/nvidia[0-9]* 2>/dev/null | wc -l)" -lt 2 ] || { \
		build/olmogen -o build/gpu/olmoe-dp2 models/olmoe-1b-7b.lua -D global=64 -D data=2 && \
		build/olmogen -o build/gpu/olmoe-ep2 models/olmoe-1b-7b.lua -D global=64 -D data=2 -D expert=2 -D capacity=1.25 && \
		build/olmogen -o build/gpu/olmoe-pp2 models/olmoe-1b-7b.lua -D global=32 -D pipeline=2; }
	sh tests/gpu/bench.sh build/gpu

# The same: training speed of tiny's shape beside PyTorch eager, on the same cores in turn.
bench-peer: all
	python3 tests/peer/bench.py config build/bench-peer
	build/olmogen --from-hf=build/bench-peer | sed 's/batch { .* }/batch { micro = 8, global = 8 }/' \
		> build/bench-peer/model.lua
	build/olmogen -o build/bench-peer/tree build/bench-peer/model.lua
	python3 tests/peer/bench.py run build/bench-peer/tree/trainer $(THREADS)

bless: all
	$(quiet)mkdir -p build/gold
	BLESS=1 sh tests/gold/run.sh build/olmogen build/gold
	BLESS=1 sh tests/err/run.sh build/olmogen

bench: all
	$(quiet)sh tests/bench.sh

lint: all
	clang-format --dry-run -Werror $(FORMATTED)
	$(quiet)sh tests/lint.sh

format:
	clang-format -i $(FORMATTED)

# ---- use ----

# Installs what is missing, as root or through sudo, where there is apt.
deps:
	$(quiet)sh tests/deps.sh

# The one command to see it work: builds olmogen and a trainer, and trains it on this folder's own sources.
demo: deps
	$(quiet)$(MAKE) --no-print-directory -j2 all
	$(quiet)sh models/demo.sh

# where manual pages and completions of bash, zsh and fish are looked for
SHARED = man/man1 bash-completion/completions zsh/site-functions fish/vendor_completions.d

install: all
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(DATADIR)/olmogen/models'
	install -m 755 build/olmogen '$(DESTDIR)$(BINDIR)/olmogen'
	install -m 644 models/*.lua '$(DESTDIR)$(DATADIR)/olmogen/models'
	install -d $(SHARED:%='$(DESTDIR)$(DATADIR)/%')
	install -m 644 share/man/*.1 '$(DESTDIR)$(DATADIR)/man/man1'
	install -m 644 share/completion/olmogen.bash '$(DESTDIR)$(DATADIR)/bash-completion/completions/olmogen'
	ln -sf olmogen '$(DESTDIR)$(DATADIR)/bash-completion/completions/trainer'
	install -m 644 share/completion/_olmogen '$(DESTDIR)$(DATADIR)/zsh/site-functions/_olmogen'
	install -m 644 share/completion/olmogen.fish '$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/olmogen.fish'
	ln -sf olmogen.fish '$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/trainer.fish'

uninstall:
	rm -f '$(DESTDIR)$(BINDIR)/olmogen'
	rm -rf '$(DESTDIR)$(DATADIR)/olmogen'
	cd '$(DESTDIR)$(DATADIR)' && rm -f $(foreach n,olmogen trainer,man/man1/$n.1 bash-completion/completions/$n \
		fish/vendor_completions.d/$n.fish) zsh/site-functions/_olmogen

clean:
	rm -rf build
	find out -mindepth 1 -maxdepth 1 ! -name .gitignore -exec rm -rf {} +

help:
	@echo 'make demo       installs what is missing, builds, trains models/tiny.lua, on a GPU where there is one (two minutes)'
	@echo 'make            builds build/olmogen'
	@echo 'make check      runs all tests (ONLY=err,gold for some of them; JOBS=2 at a time)'
	@echo 'make bigcheck   all tests at full length; SEED=1'
	@echo 'make fuzz       reading of files from outside by libFuzzer (needs clang); FUZZ_SECONDS=60 for each of four'
	@echo 'make check-gpu  kernels against naive ones, models against the CPU, on a GPU (NVIDIA, CUDA Toolkit)'
	@echo 'make bench-gpu  speed of kernels and of OLMoE-1B-7B on one GPU, and of their peers'
	@echo 'make check-peer fresh random models against transformers (needs PyTorch); SEED=1'
	@echo 'make bench-peer training speed beside PyTorch eager (needs PyTorch); THREADS=2'
	@echo 'make bench      prints times: plan, emission, build, GEMM against OpenBLAS, start'
	@echo 'make lint       checks format and the rules of the house; make format formats'
	@echo 'make bless      rewrites the golden files; look at the diff before you commit'
	@echo 'make install    PREFIX=/usr/local DESTDIR=; make uninstall'
	@echo 'make clean      removes build/ and what is in out/'
	@echo 'variables       CC CFLAGS SAN=address,undefined V=1'

.PHONY: all check bigcheck fuzz check-gpu check-peer bench-peer bench-gpu bless bench lint format deps demo install uninstall clean help
.SECONDARY:
-include $(GEN_OBJ:.o=.d)
