/* First values of weights on the device, the same bits as the host's. */
#include "om_cuda.h"

#include "normal.h"

/* n elements of a tensor, by its name's hash: bf16 weights, and of [begin, end) the fp32 masters */
OM_GLOBAL(256, 4)
om_init_normal(om_bf16 *w, float *master, uint64_t begin, uint64_t end, uint64_t n, uint64_t seed,
    uint64_t name, double std)
{
	for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
		float x = (float)(std * om_normal_at(seed, name, i));

		if (i >= begin && i < end)
			master[i - begin] = x;
		w[i] = om_round(x);
	}
}
