// Checks on the host compiler live here in a toolkit; the runtime wheel has no such file, and g++ needs none.
#ifndef __HOST_CONFIG_H__
#define __HOST_CONFIG_H__
#include <features.h>
#endif
