/* Coverage of C code for libFuzzer. GCC calls __sanitizer_cov_trace_pc at every edge (-fsanitize-coverage=trace-pc),
   but libFuzzer expects a counter and an address per edge. libFuzzer's own function of that name only reports that this
   is no longer supported, so the linker wraps it. */
#include <stddef.h>
#include <stdint.h>

#define EDGES (1u << 15)

static uint8_t counters[EDGES];
static struct {
    uintptr_t at, is_entry;
} places[EDGES];

void __sanitizer_cov_8bit_counters_init(uint8_t *start, uint8_t *end);
void __sanitizer_cov_pcs_init(const uintptr_t *start, const uintptr_t *end);

__attribute__((constructor, no_sanitize_coverage)) static void tell(void) {
    for (size_t i = 0; i < EDGES; i++)
        places[i].at = (uintptr_t)&counters[i];
    __sanitizer_cov_8bit_counters_init(counters, counters + EDGES);
    __sanitizer_cov_pcs_init((const uintptr_t *)places, (const uintptr_t *)(places + EDGES));
}

__attribute__((no_sanitize_coverage, no_sanitize_address)) void __wrap___sanitizer_cov_trace_pc(void) {
    uintptr_t at = (uintptr_t)__builtin_return_address(0);
    uint8_t *counter = &counters[(at ^ at >> 15) % EDGES];
    *counter += *counter != 255;
}

/* GCC also reports comparisons of floating-point numbers, which libFuzzer does not use. */
void __sanitizer_cov_trace_cmpf(float a, float b) { (void)a, (void)b; }
void __sanitizer_cov_trace_cmpd(double a, double b) { (void)a, (void)b; }
