#error "crucible-sim: cuSPARSE (<cusparse.h>) is not simulated"
