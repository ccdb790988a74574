/*@banner the step: forward, backward and update, one op a line*/
#include "launch.h"
#include "layout.h"
#include "step.h"

/* a segment's ops; profilers see them in a range with its name and layer */
#define SEGMENT(function, layer, ...) \
	do { \
		if (om_profile) \
			om_range_begin(#function, layer); \
		function(__VA_ARGS__); \
		if (om_profile) \
			om_range_end(); \
	} while (0)
/*@slot functions*/
