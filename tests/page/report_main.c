/* The command report alone, as trainers have it: report METRICS... */
#include "om_rt.h"

int
main(int argc, char **argv)
{
	om_err_name("report");
	return om_report(argc - 1, argv + 1);
}
