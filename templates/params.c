/*@banner parameters, groups, experts: what the runtime has to know*/
#include <stddef.h>

#include "config.h"
#include "launch.h"
#include "layout.h"
#include "model.h"
#include "om.h"
#include "step.h"
/*@slot tables*/
