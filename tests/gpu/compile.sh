#!/bin/sh
# Every kernel instance of every model compiles for sm_90a and sm_100a, without a spill, and its trainer links, wherever
# the CUDA Toolkit is; no GPU needed. Layouts are cut to one rank, or two that share experts, and depth to a few layers, which
# no instance but the update's depends on. Usage: tests/gpu/compile.sh OLMOGEN WORKDIR [all]; without "all", only some models.
set -u
. "$(dirname "$0")/../suite.sh"
olmogen=$(realpath "$1") work=$2 which=${3:-few}
cd "$(dirname "$0")/../.." || exit 1
rm -rf "$work"
mkdir -p "$work/models"
work=$(realpath "$work")
export XDG_CACHE_HOME="$work/cache"
logs=$work/log
"$olmogen" --target=cuda:sm_90a -o "$work/tiny" models/tiny.lua >"$work/log" 2>&1
status=$?
if grep -q 'there is no libnvrtc.so' "$work/log"; then
	suite_skip "no CUDA Toolkit here"
fi
is "tiny for cuda:sm_90a" $status
"$work/tiny/trainer" selftest >"$work/log" 2>&1
[ -e /dev/nvidiactl ] || { grep -q 'driver: no NVIDIA driver here' "$work/log" && [ "$(wc -l <"$work/log")" = 1 ]; }
is "no driver is one line" $?
"$olmogen" --target=cuda:sm_90a -o "$work/again" models/tiny.lua >"$work/log" 2>&1 && cmp -s "$work/tiny/trainer" "$work/again/trainer"
is "the same trainer to the byte, from cached cubins" $?
for f in "$XDG_CACHE_HOME"/olmogen/*.cubin; do # a flipped byte, an empty file: neither may reach a trainer
	printf X | dd of="$f" bs=1 seek=2000 conv=notrunc 2>/dev/null
done
: >"$f"
"$olmogen" --target=cuda:sm_90a -o "$work/third" models/tiny.lua >"$work/log" 2>&1 && cmp -s "$work/tiny/trainer" "$work/third/trainer"
is "damaged cubins of the cache are compiled anew" $?
touch -d '2 days ago' "$XDG_CACHE_HOME"/olmogen/*.cubin
used=$(ls "$XDG_CACHE_HOME"/olmogen/*.cubin | head -n 1) # all of them are: what nothing uses is added
for i in 1 2 3; do head -c 1500000 /dev/zero >"$XDG_CACHE_HOME/olmogen/old$i.cubin" && touch -d "$i days ago" "$XDG_CACHE_HOME/olmogen/old$i.cubin"; done
total=$(du -cb "$XDG_CACHE_HOME"/olmogen/*.cubin | tail -n 1 | cut -f 1)
OLMOGEN_CACHE_MIB=$(((total >> 20) - 1)) "$olmogen" --target=cuda:sm_90a -o "$work/third" models/tiny.lua >"$work/log" 2>&1 &&
	[ ! -e "$XDG_CACHE_HOME/olmogen/old3.cubin" ] && [ -e "$used" ] && [ -e "$XDG_CACHE_HOME/olmogen/old1.cubin" ]
is "of a cache over its limit goes what was used the longest ago, and no more" $?
OLMOGEN_CACHE_MIB=1g "$olmogen" --target=cuda:sm_90a -o "$work/third" models/tiny.lua >/dev/null 2>"$work/log" && [ -e "$used" ] &&
	grep -qF "warning: OLMOGEN_CACHE_MIB = 1g is no number of MiB; 512 are kept" "$work/log"
is "a limit that is no number is said, and nothing goes" $?
XDG_CACHE_HOME="$work/empty" "$olmogen" -j16 --target=cuda:sm_90a -o "$work/fourth" models/tiny.lua >"$work/log" 2>&1 &
pid=$! children=
while kill -0 $pid 2>/dev/null && [ "$(echo $children | wc -w)" -lt 8 ]; do # compilers, more than a second's work
	children=$(cat /proc/$pid/task/$pid/children)
done
kill -TERM $pid
wait $pid
sleep 1
left=0
for c in $children; do # dead ones that nobody reaped have no command
	[ -z "$(tr -d '\0' 2>/dev/null <"/proc/$c/cmdline")" ] || left=$((left + 1))
done
[ -n "$children" ] && [ $left = 0 ]
is "SIGTERM leaves no compiler behind" $?
CUDA_HOME=/nonexistent "$olmogen" --target=cuda:sm_90a -o "$work/none" models/tiny.lua >"$work/log" 2>&1
[ $? = 1 ] && grep -q 'no libnvrtc.so in the lib64 of CUDA_HOME = /nonexistent' "$work/log"
is "a wrong CUDA_HOME is named" $?
rm -rf "$work/none"
# an NVRTC that is too old, and the oldest that will do: pip's nvidia-cuda-nvrtc-cu12==12.4.*, with the headers of
# nvidia-cuda-runtime-cu12 and nvidia-nvtx-cu12, its libraries in $CUDA12_HOME/lib64, the headers in $CUDA12_HOME/include
mkdir -p "$work/old/lib64"
printf 'int nvrtcVersion(int *a, int *b) { *a = 12; *b = 3; return 0; }\nint %s;\n' \
	"nvrtcCreateProgram, nvrtcCompileProgram, nvrtcGetCUBINSize, nvrtcGetCUBIN, nvrtcGetProgramLogSize, nvrtcGetProgramLog, nvrtcGetErrorString" |
	gcc -shared -fPIC -x c -o "$work/old/lib64/libnvrtc.so.12" -
for t in sm_90a.12.4 sm_100a.13.0; do
	CUDA_HOME=$work/old "$olmogen" --target=cuda:${t%%.*} -o "$work/none" models/tiny.lua >"$work/log" 2>&1
	[ $? = 1 ] && grep -q "kernels for ${t%%.*}: NVRTC is of CUDA 12.3; install the CUDA Toolkit (${t#*.} or later)" "$work/log"
	is "an older NVRTC than $t needs is named" $?
done
rm -rf "$work/none"
for m in ${CUDA12_HOME:+tiny olmoe-1b-7b}; do
	CUDA_HOME=$CUDA12_HOME "$olmogen" --target=cuda:sm_90a -o "$work/$m.12" models/$m.lua >"$work/log" 2>&1
	is "$m for cuda:sm_90a by NVRTC of CUDA12_HOME" $?
	"$work/$m.12/trainer" info | grep -q '^needs  *a driver for CUDA 12'
	is "$m needs a driver of CUDA 12 then" $?
done
for m in models/*.lua; do
	name=$(basename "$m" .lua)
	sed 's/n_layers = [0-9a-z]*/n_layers = 2/' "$m" >"$work/models/$name.lua"
	set -- -D data=1 -D expert=1
	case $name in
	tiny) continue ;;
	olmo3-moe) set -- "$@" -D pipeline=1 ;;
	olmoe-1b-7b) set -- ;;
	llama3-8b | olmo3-7b) set -- -D data=1 ;;
	esac
	case $which.$name in # of the few: one of each architecture's experts, and one without
	few.olmoe-1b-7b | few.llama3-8b) targets=cuda:sm_90a ;;
	few.olmo3-moe) targets=cuda:sm_100a && set -- -D data=2 -D expert=2 -D pipeline=1 ;; # sends rows
	few.*) targets= ;;
	*) targets="cuda:sm_90a cuda:sm_100a" ;;
	esac
	case $which.$name in # which mask documents
	few.olmo3-moe | few.llama3-8b) sed -i 's/batch = batch {/& documents = "mask",/' "$work/models/$name.lua" ;;
	esac
	case $name in # whose matrices Muon steps, and NorMuon
	olmo3-moe) sed -i 's/optimizer = adamw {/& matrices = muon { row_beta = 0.95 },/' "$work/models/$name.lua" ;;
	esac
	for t in $targets; do
		"$olmogen" --target=$t -o "$work/$name" "$@" "$work/models/$name.lua" >"$work/log" 2>&1
		is "$name for $t" $?
	done
done
suite_end
