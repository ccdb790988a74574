/*@banner the model as the runtime sees it*/
#ifndef OM_MODEL_H
#define OM_MODEL_H

#include "om.h"

extern const char om_manifest[], om_plan[]; /* manifest.yaml and PLAN.txt, in main.c */
extern const struct om_model om_models[]; /* one a stage of the pipeline */

#endif
