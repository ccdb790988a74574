/*@banner what step.c gives*/
#ifndef OM_STEP_H
#define OM_STEP_H

/*@slot prototypes*/

#endif
