#error "crucible-sim: cuSOLVER (<cusolverDn.h>) is not simulated"
