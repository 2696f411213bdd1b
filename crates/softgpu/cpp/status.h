// The results of libcuda's functions, as far as the software GPU gives them.
#pragma once
enum {
    OK = 0,
    INVALID = 1,
    OOM = 2,
    NOT_INIT = 3,
    NO_DEVICE = 100,
    BAD_DEVICE = 101,
    BAD_IMAGE = 200,
    BAD_CONTEXT = 201,
    BAD_PTX = 218,
    NO_FILE = 301,
    BAD_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ASSERT = 710,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURING = 900,
    NOT_CAPTURING = 901,
    UNJOINED = 904,
    ISOLATION = 905,
};
