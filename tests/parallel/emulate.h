/*
 * CUDA's device code on the CPU, as C++17: a block is a thread of the system, its threads are
 * contexts that give way to each other where they wait, in an order that changes. As few blocks run
 * at once as is said, so that code which needs all of them at once hangs. What has no meaning here
 * (assembly) has its own version at the end.
 */
#ifndef EMULATE_H
#define EMULATE_H

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <sched.h>
#include <thread>
#include <time.h>
#include <ucontext.h>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct dim {
	unsigned x, y;
};
struct int4 {
	int x, y, z, w;
};
struct uint4 {
	uint32_t x, y, z, w;
};
using std::max;
using std::min;

namespace emulate
{
/* Some threads that meet: those of a block or of a warp. */
struct meeting {
	int members = 0, came = 0, turn = 0;
	bool all[2] = { true, true };
	uint64_t value[32];
};
struct block {
	ucontext_t home;
	std::vector<ucontext_t> context;
	std::vector<std::unique_ptr<char[]>> stack;
	std::vector<bool> ended;
	std::vector<meeting> warp;
	meeting whole;
	unsigned now = 0;
	std::function<void()> body;
};
inline thread_local block *here;
inline thread_local dim block_index, grid_size;

inline void
give_way()
{
	swapcontext(&here->context[here->now], &here->home);
}

inline void
leave(meeting &m)
{
	if (--m.members && m.came == m.members) {
		m.came = 0;
		m.turn++;
	}
}

inline bool
meet(meeting &m, bool x)
{
	const int turn = m.turn;
	bool &all = m.all[turn % 2];
	all = all && x;
	if (++m.came == m.members) {
		m.came = 0;
		m.all[(turn + 1) % 2] = true;
		m.turn++;
	}
	while (m.turn == turn)
		give_way();
	return all;
}

inline meeting &
warp()
{
	return here->warp[here->now / 32];
}

/* The lanes of a warp exchange values: f gets all of them, and who asks. */
template <class X, class F>
auto
exchange(X x, F f)
{
	const unsigned lane = here->now % 32;
	memcpy(&warp().value[lane], &x, sizeof x);
	meet(warp(), true);
	const auto result = f(warp().value, lane);
	meet(warp(), true);
	return result;
}

inline void
start(unsigned low, unsigned high)
{
	block *b = (block *)((uintptr_t)high << 32 | low);
	b->body();
	b->ended[b->now] = true;
	leave(b->whole);
	leave(b->warp[b->now / 32]);
}

inline void
run_block(std::function<void()> body, unsigned threads, dim index, dim size, uint64_t random)
{
	enum { STACK = 48 << 10 };
	block b;
	here = &b;
	block_index = index;
	grid_size = size;
	b.body = body;
	b.context.resize(threads);
	b.ended.resize(threads);
	b.warp.resize((threads + 31) / 32);
	b.whole.members = (int)threads;
	for (unsigned i = 0; i < threads; i++) {
		b.warp[i / 32].members++;
		b.stack.emplace_back(new char[STACK]);
		getcontext(&b.context[i]);
		b.context[i].uc_stack.ss_sp = b.stack[i].get();
		b.context[i].uc_stack.ss_size = STACK;
		b.context[i].uc_link = &b.home;
		makecontext(&b.context[i], (void (*)())start, 2, (unsigned)(uintptr_t)&b,
		    (unsigned)((uintptr_t)&b >> 32));
	}
	for (unsigned left = threads; left;) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		const unsigned first = (unsigned)(random >> 33) % threads;
		left = 0;
		for (unsigned i = 0; i < threads; i++) {
			b.now = (first + i) % threads;
			if (b.ended[b.now])
				continue;
			left++;
			swapcontext(&b.home, &b.context[b.now]);
		}
	}
}

/* One launch, whose blocks run a few at a time. */
inline void
launch(std::function<void()> body, unsigned blocks, unsigned threads, unsigned at_once,
    uint64_t random)
{
	std::atomic<unsigned> next{ 0 };
	std::vector<std::thread> runners;
	for (unsigned i = 0; i < std::min(at_once, blocks); i++)
		runners.emplace_back([&] {
			for (unsigned b; (b = next++) < blocks;)
				std::thread(run_block, body, threads, dim{ b, 0 }, dim{ blocks, 1 },
				    random + b)
				    .join();
		});
	for (std::thread &t : runners)
		t.join();
}
} // namespace emulate

#define threadIdx (dim{ emulate::here->now, 0 })
#define blockIdx emulate::block_index
#define gridDim emulate::grid_size

inline void
__syncthreads()
{
	emulate::meet(emulate::here->whole, true);
}
inline bool
__syncthreads_and(bool x)
{
	return emulate::meet(emulate::here->whole, x);
}
inline void
__syncwarp()
{
	emulate::meet(emulate::warp(), true);
}
inline void
__threadfence_system()
{
	std::atomic_thread_fence(std::memory_order_seq_cst);
}
inline void
__threadfence()
{
	__threadfence_system();
}
inline void
__nanosleep(unsigned)
{
	emulate::give_way();
	sched_yield();
}
template <class X>
X
atomicAdd(X *p, X x)
{
	return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}
template <class X>
X
__shfl_sync(unsigned, X x, int from, int = 32)
{
	return emulate::exchange(x, [=](const uint64_t *all, unsigned) {
		X y;
		memcpy(&y, &all[from], sizeof y);
		return y;
	});
}
template <class X>
X
__shfl_up_sync(unsigned, X x, int d)
{
	return emulate::exchange(x, [=](const uint64_t *all, unsigned lane) {
		X y;
		memcpy(&y, &all[lane < (unsigned)d ? lane : lane - (unsigned)d], sizeof y);
		return y;
	});
}
template <class X>
X
__shfl_xor_sync(unsigned, X x, int d, int = 32)
{
	return emulate::exchange(x, [=](const uint64_t *all, unsigned lane) {
		X y;
		memcpy(&y, &all[lane ^ (unsigned)d], sizeof y);
		return y;
	});
}
inline unsigned
__match_any_sync(unsigned, int x)
{
	return emulate::exchange((int64_t)x, [=](const uint64_t *all, unsigned) {
		unsigned same = 0;
		for (unsigned i = 0; i < 32; i++)
			same |= (unsigned)(all[i] == (uint64_t)(int64_t)x) << i;
		return same;
	});
}
inline unsigned
__ballot_sync(unsigned, int x)
{
	return __match_any_sync(0, x != 0);
}
inline size_t
__cvta_generic_to_shared(const void *p)
{
	return (size_t)p;
}
inline int
__popc(unsigned x)
{
	return __builtin_popcount(x);
}
inline int
__ffs(int x)
{
	return __builtin_ffs(x);
}
inline float
__uint_as_float(uint32_t x)
{
	float y;
	memcpy(&y, &x, sizeof y);
	return y;
}
inline uint32_t
__float_as_uint(float x)
{
	uint32_t y;
	memcpy(&y, &x, sizeof y);
	return y;
}

/* ---- om_cuda.h and peer.h, but for what is assembly there ---- */

#define __CUDACC__
#define OM_ARCH 90
#define OM_PEER_EMULATED
#define om_round om_round_there
#define om_pack om_pack_there
#define om_store8 om_store8_there
#define om_exp2 om_exp2_there
#define om_smem om_smem_there
#define asm(...)
#define volatile(...) ("")
#include "om_cuda.h"
#undef asm
#undef volatile
#undef om_round
#undef om_pack
#undef om_store8
#undef om_exp2
#undef om_smem

inline om_bf16
om_round(float x)
{
	const uint32_t b = __float_as_uint(x);
	return (om_bf16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

inline void
om_store8(om_bf16 *p, const float x[8])
{
	for (int i = 0; i < 8; i++)
		p[i] = om_round(x[i]);
}

inline void
om_peer_write(uint64_t *p, uint64_t x)
{
	__atomic_store_n(p, x, __ATOMIC_RELEASE);
}

inline uint64_t
om_peer_read(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

inline uint64_t
om_peer_nanoseconds()
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#endif
