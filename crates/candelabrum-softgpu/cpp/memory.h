// Device memory: the host's memory, with a table of the live allocations.
#pragma once
#include "common.h"

// Memory that was not written yet, and memory that was freed. Both are a NaN in all types of
// floats, so that their use shows.
const int FRESH = 0xff, FREED = 0xfd;

size_t device_memory();
// From now on these bytes, a variable of a module, are an allocation of the device.
void adopt(devptr p, size_t bytes);
// Whether all of it lies within one live allocation of the device.
bool is_device(devptr p, size_t bytes);
// Whether all of it lies within one allocation of pinned host memory.
bool is_pinned(const void *p, size_t bytes);

// SOFTGPU_CHECK: allocations that end at a page without access.
bool guarding();
void *guarded_take(size_t bytes);
// Also reports writes into the few bytes between the allocation and its page without access.
void guarded_release(void *p, size_t bytes);
// What the address is to an allocation, in words; empty if it is near none. Takes no lock that a
// thread which was interrupted by a signal could hold for ever.
void describe_address(uintptr_t address, char *text, size_t size);
