#include "head.h"

#include "case.h"
#ifdef __CUDACC__
#define ROW(NAME, c, v, what, scale, z) OM_HEAD_ROW(NAME##_row, v, what, scale, z)
#else
#define ROW(NAME, c, v, what, scale, z)                                    \
	OM_KERNEL(NAME##_row, OM_HEAD_THREADS, OM_HEAD_SMEM(v, what))      \
	static double NAME##_check(uint64_t seed)                          \
	{                                                                  \
		return row_check(&NAME##_row, c, v, what, scale, z, seed); \
	}

/* The kernel between the products alone, on c rows of given logits. */
static double
row_check(const struct om_kernel *row, int64_t c, int64_t v, int what, double scale, double z,
    uint64_t seed)
{
	const double ctl[OM_CTL_N] = { [OM_CTL_PER_LABEL] = 1.25 };
	int32_t *label = malloc((size_t)c * 4);
	float *lse = malloc((size_t)c * 4), *loss = malloc((size_t)c * 8);
	om_bf16 *dlogit = malloc((size_t)v * 2);
	double *p = malloc((size_t)v * 8);
	struct om_err elog = { .scale = 1 }, ez = { .scale = scale };
	const int64_t samples = c < 16 ? c : 16, pitch = OM_HEAD_PITCH(v);
	for (int64_t i = 0; i < c; i++) {
		label[i] = i % 97 == 3 ? -1 : (int32_t)(i * 7919 % v);
		lse[i] = 9;
	}
	for (int pass = 0; pass < 2; pass++) { /* lse, then compare */
		float *d_z = om_check_f32(c * pitch, seed, 0, 4);
		int32_t *d_label = om_check_copy(label, (size_t)c * 4);
		double *d_ctl = om_check_copy(ctl, sizeof ctl);
		float *d_lse = om_check_copy(lse, (size_t)c * 4);
		float *d_loss = om_check_nan((size_t)c * 8);
		om_bf16 *d_dlogit = om_check_nan((size_t)(c * pitch) * 2);
		if (pass) {
			OM_LAUNCH(*row, (uint32_t)c, 1, 1, &d_z, &d_label, &d_ctl, &d_lse, &d_loss,
			    &d_dlogit);
			om_check_read(lse, d_lse, (size_t)c * 4);
			om_check_read(loss, d_loss, (size_t)c * 8);
		}
		for (int64_t s = 0; s < samples; s++) {
			const int64_t i = samples > 1 ? s * (c - 1) / (samples - 1) : 0;
			double sum = 0, log_sum;
			for (int64_t j = 0; j < v; j++)
				sum += p[j] =
				    exp((double)(float)(om_unit(seed, 0, i * pitch + j) * 4));
			log_sum = log(sum);
			if (!pass) {
				lse[i] = (float)log_sum;
				continue;
			}
			om_err_add(&elog, (double)lse[i], log_sum);
			if (what != OM_HEAD_DLOGIT) {
				double entropy = label[i] < 0 ? 0 : log_sum - log(p[label[i]]);
				om_err_add(&elog, (double)loss[2 * i], entropy);
				om_err_add(&elog, sqrt((double)loss[2 * i + 1]),
				    label[i] < 0 ? 0 : log_sum);
			}
			if (what == OM_HEAD_LOSSES)
				continue;
			om_check_read(dlogit, d_dlogit + i * pitch, (size_t)v * 2);
			for (int64_t j = 0; j < v; j++) {
				double want = (1 + 2 * z * log_sum) * p[j] / sum - (j == label[i]);
				om_err_add(&ez, (double)om_bf16_f32(dlogit[j]),
				    label[i] < 0 ? 0 : scale * ctl[OM_CTL_PER_LABEL] * want);
			}
		}
		if (pass)
			OM_TIME(OM_LAUNCH(*row, (uint32_t)c, 1, 1, &d_z, &d_label, &d_ctl, &d_lse,
			    &d_loss, &d_dlogit));
		om_check_end();
	}
	free(label);
	free(lse);
	free(loss);
	free(dlogit);
	free(p);
	return fmax(om_err_value(&elog) * (what == OM_HEAD_LOSSES ? 1 : 1000), om_err_value(&ez));
}
#endif

/*
 * Losses and lse are sums of float logits: exp2's 2^-22, the tensor core's sums, on values of 2 to
 * 12. Gradients: dlogit and dx are each rounded to bf16, 2^-9 of terms that may cancel.
 */
#define LOSS 4e-6
#define GRAD 6e-3

/* t n v c scale z: a chunk's end within, all in one, rows that a thread can't keep; any v */
CASE(OM_HEAD_LOSS, LOSS, head_loss_one, 1, 8, 8, 16, 1.0, 0.0)
CASE(OM_HEAD_LOSS, LOSS, head_loss_tiny, 12, 64, 96, 5, 0.5, 0.01)
CASE(OM_HEAD_LOSS, LOSS, head_loss_odd, 197, 72, 1000, 64, 0.25, 0.01)
CASE(OM_HEAD_LOSS, LOSS, head_loss_wide, 70, 128, 128256, 64, 0.01, 0.0)
CASE(OM_HEAD_SCORE, LOSS, head_score_tiny, 12, 64, 96, 5, 0.5)
CASE(OM_HEAD_SCORE, LOSS, head_score_odd, 197, 72, 1003, 64, 0.25)
CASE(OM_HEAD_LOSS, LOSS, head_loss_few, 5, 8, 3, 16, 1.0, 0.01)
CASE(OM_HEAD_LOSS, LOSS, head_loss_1003, 197, 72, 1003, 64, 0.25, 0.01)
CASE(OM_HEAD_LOSS, LOSS, head_loss_50257, 70, 128, 50257, 64, 0.01, 0.0)
RATED(OM_HEAD_LOSS, LOSS, 2.0 * 16384 * 2048 * 50304, 0, head_loss_olmoe, 16384, 2048, 50304, 2048,
    6.1e-5, 1e-5)

CASE(OM_HEAD_LOSS_BWD, GRAD, head_loss_bwd_one, 1, 8, 8, 16, 1.0, 0.0)
CASE(OM_HEAD_LOSS_BWD, GRAD, head_loss_bwd_tiny, 12, 64, 96, 5, 0.5, 0.01)
CASE(OM_HEAD_LOSS_BWD, GRAD, head_loss_bwd_odd, 197, 72, 1000, 64, 0.25, 0.01)
CASE(OM_HEAD_LOSS_BWD, GRAD, head_loss_bwd_few, 5, 8, 3, 16, 1.0, 0.01)
CASE(OM_HEAD_LOSS_BWD, GRAD, head_loss_bwd_1003, 197, 72, 1003, 64, 0.25, 0.01)
RATED(OM_HEAD_LOSS_BWD, GRAD, 6.0 * 16384 * 2048 * 50304, 0, head_loss_bwd_olmoe, 16384, 2048,
    50304, 2048, 6.1e-5, 1e-5)

CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_one, 1, 8, 8, 16, 1.0, 0.0)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_tiny, 12, 64, 96, 5, 0.5, 0.01)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_odd, 197, 72, 1000, 64, 0.25, 0.01)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_few, 5, 8, 3, 16, 1.0, 0.01)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_1001, 197, 72, 1001, 64, 0.25, 0.01)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_1002, 197, 72, 1002, 64, 0.25, 0.01)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_1003, 197, 72, 1003, 64, 0.25, 0.01)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_1004, 197, 72, 1004, 64, 0.25, 0.01)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_50257, 70, 128, 50257, 64, 0.01, 1e-4)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_128255, 70, 128, 128255, 64, 0.01, 1e-4)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_even, 256, 128, 4104, 128, 0.25, 0.0)
CASE(OM_HEAD_LOSS_GRAD, GRAD, head_loss_grad_wide, 70, 128, 128256, 64, 0.01, 1e-4)
RATED(OM_HEAD_LOSS_GRAD, GRAD, 6.0 * 16384 * 2048 * 50304, 0, head_loss_grad_olmoe, 16384, 2048,
    50304, 2048, 6.1e-5, 1e-5)

/* one chunk: shorter than the time after which the device lowers its clock */
RATED(OM_HEAD_LOSS_GRAD, GRAD, 6.0 * 2048 * 2048 * 50304, 0, head_loss_grad_chunk, 2048, 2048,
    50304, 2048, 6.1e-5, 1e-5)
RATED(OM_HEAD_LOSS_GRAD, GRAD, 6.0 * 16384 * 2048 * 50304, 0, head_loss_grad_4096, 16384, 2048,
    50304, 4096, 6.1e-5, 1e-5)

/* OLMo 3's vocabulary, and the same rounded up to 64 */
RATED(OM_HEAD_LOSS_GRAD, GRAD, 6.0 * 2048 * 4096 * 100278, 0, head_loss_grad_100278, 2048, 4096,
    100278, 2048, 6.1e-5, 1e-5)
RATED(OM_HEAD_LOSS_GRAD, GRAD, 6.0 * 2048 * 4096 * 100288, 0, head_loss_grad_100288, 2048, 4096,
    100288, 2048, 6.1e-5, 1e-5)

#define BYTES(c, v, each) ((double)(c) * (v) * (each))
RATED(ROW, LOSS, 0, BYTES(2048, 50304, 4), head_row_losses, 2048, 50304, OM_HEAD_LOSSES, 1.0, 1e-4)
RATED(ROW, GRAD, 0, BYTES(2048, 50304, 6), head_row_dlogit, 2048, 50304, OM_HEAD_DLOGIT, 0.5, 1e-4)
RATED(ROW, GRAD, 0, BYTES(2048, 50304, 6), head_row_both, 2048, 50304, OM_HEAD_BOTH, 0.5, 1e-4)
RATED(
    ROW, GRAD, 0, BYTES(2048, 32000, 6), head_row_both_32000, 2048, 32000, OM_HEAD_BOTH, 0.5, 1e-4)
RATED(ROW, GRAD, 0, BYTES(1024, 100352, 6), head_row_both_100352, 1024, 100352, OM_HEAD_BOTH, 0.5,
    1e-4)
RATED(ROW, GRAD, 0, BYTES(1024, 100278, 6), head_row_both_100278, 1024, 100278, OM_HEAD_BOTH, 0.5,
    1e-4)
RATED(ROW, GRAD, 0, BYTES(1024, 151936, 6), head_row_both_151936, 1024, 151936, OM_HEAD_BOTH, 0.5,
    1e-4)
RATED(ROW, GRAD, 0, BYTES(1024, 128256, 6), head_row_both_128256, 1024, 128256, OM_HEAD_BOTH, 0.5,
    1e-4)
