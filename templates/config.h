/*@banner the numbers of the model and of its step*/
#ifndef OM_CONFIG_H
#define OM_CONFIG_H

#include <stdint.h>

/*@slot numbers*/

#endif
