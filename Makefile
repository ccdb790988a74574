# olmogen: make help

CC = gcc
CFLAGS ?= -O2 -g
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
DATADIR ?= $(PREFIX)/share
PKG_CONFIG ?= pkg-config
SAN ?=
V ?= 0

B = build$(if $(SAN),/san)
quiet = $(if $(filter 1,$(V)),,@)
san_flags = $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)

# Lua and libyaml go into olmogen from their archives, so that it is one file; a sanitizer wants shared libraries
LUA_CFLAGS = $(shell $(PKG_CONFIG) --cflags lua5.4 2>/dev/null)
LIBS = -Wl,-Bstatic -llua5.4 -lyaml -Wl,-Bdynamic -lm -ldl

WARN = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
ALL_CFLAGS = -std=c11 -D_POSIX_C_SOURCE=200809L $(WARN) -Igenerator $(LUA_CFLAGS) $(CFLAGS) $(san_flags)

GEN_SRC = $(filter-out generator/embed.c,$(sort $(wildcard generator/*.c)))
GEN_OBJ = $(GEN_SRC:%.c=$(B)/%.o) $(B)/embedded.o
EMBEDDED = LICENSE $(sort $(wildcard templates/*) $(wildcard runtime/*.[ch] runtime/*.def) $(wildcard kernels/cpu/*.h))

all: $(B)/olmogen

$(B)/olmogen: $(GEN_OBJ)
	$(quiet)$(CC) $(san_flags) $(LDFLAGS) -o $@ $(GEN_OBJ) $(LIBS)

$(B)/generator/%.o: generator/%.c
	$(quiet)mkdir -p $(@D)
	$(quiet)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(B)/embed: generator/embed.c
	$(quiet)mkdir -p $(@D)
	$(quiet)$(CC) -std=c11 -O1 -Wall -Wextra -o $@ $<

# a folder is newer than the table when a file came or went
$(B)/embedded.c: $(B)/embed $(EMBEDDED) templates runtime kernels/cpu Makefile
	$(quiet)$(B)/embed $(EMBEDDED) > $@.tmp && mv $@.tmp $@

$(B)/embedded.o: $(B)/embedded.c
	$(quiet)$(CC) -std=c11 -Igenerator -c -o $@ $<

clean:
	rm -rf build

.PHONY: all clean
-include $(GEN_OBJ:.o=.d)
