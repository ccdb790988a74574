/*@banner one launch function a kernel instance; a last _2 or _3 means other constants*/
#ifndef OM_LAUNCH_H
#define OM_LAUNCH_H

#include <stdint.h>

#include "config.h"
#include "om.h"

/*@slot launches*/

#endif
