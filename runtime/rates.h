/* Groups of parameters whose rate has a schedule of its own: lr.groups of run.yaml. */
#ifndef OM_RATES_H
#define OM_RATES_H

#include "om_rt.h"

struct om_rate {
	char *group;
	struct om_lr lr;
};
/* Reads lr.groups; a fault is a diagnostic. */
void om_rates_read(struct om_conf *c);
void om_rates_free(struct om_conf *c);
/* Every group of lr.groups is one of the trainer's, or the process ends. */
void om_rates_check(const struct om_conf *c, const struct om_model *m);
/* Rates of groups at a place of the schedule, times factor; ctl is written. */
void om_rates_write(const struct om_conf *c, const struct om_model *m, unsigned char *arena,
    uint64_t at, double factor);

#endif
