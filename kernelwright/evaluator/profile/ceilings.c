/* What this machine can do at most with one thread: bandwidth by working-set size, float32 FMA rate, instruction rate.
   Prints lines "name value": GB/s, GFLOP/s, 1e9 instructions/s. Build with -O3 -march=native -ffp-contract=fast. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif

typedef float vector __attribute__((vector_size(WIDTH)));
typedef unsigned word_vector __attribute__((vector_size(WIDTH)));

static volatile float float_sink;
static volatile unsigned word_sink;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void read_all(const word_vector *data, size_t count) {
    word_vector a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i + 4 <= count; i += 4) {
        a ^= data[i];
        b ^= data[i + 1];
        c ^= data[i + 2];
        d ^= data[i + 3];
    }
    a ^= b ^ c ^ d;
    word_sink = a[0];
}

/* Best of the passes that fit into 50 ms, at least three; reading all of it, or copying one half onto the other. */
static double bandwidth(char *memory, size_t bytes, int copying) {
    double best = 0, begin = seconds();
    for (int pass = 0; pass < 3 || seconds() - begin < 0.05; pass++) {
        int inner = bytes < (1u << 20) ? 16 : 1;
        double start = seconds();
        for (int i = 0; i < inner; i++) {
            if (copying)
                memcpy(memory, memory + bytes / 2, bytes / 2);
            else
                read_all((const word_vector *)memory, bytes / WIDTH);
            __asm__ volatile("" ::: "memory");
        }
        double rate = (double)bytes * inner / (seconds() - start);
        if (rate > best) best = rate;
    }
    return best / 1e9;
}

#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define DECLARE(k) vector a##k = {k};
#define MULTIPLY(k) a##k = a##k * scale + shift;
#define ADD_UP(k) sum += a##k;

static double fma_rate(void) {
    const long steps = 200000;
    double best = 0, begin = seconds();
    vector scale = {0.5f}, shift = {0.25f};
    __asm__ volatile("" : "+m"(scale), "+m"(shift));
    while (seconds() - begin < 0.05) {
        EACH(DECLARE)
        double start = seconds();
        for (long i = 0; i < steps; i++) { EACH(MULTIPLY) }
        vector sum = {0};
        EACH(ADD_UP)
        float_sink = sum[0];
        double rate = 10.0 * steps * 2 * (WIDTH / 4) / (seconds() - start);
        if (rate > best) best = rate;
    }
    return best / 1e9;
}

#define COUNT(k) b##k += 1; __asm__ volatile("" : "+r"(b##k));
#define ZERO(k) unsigned long b##k = k;

static double instruction_rate(void) {
    const long steps = 200000;
    double best = 0, begin = seconds();
    while (seconds() - begin < 0.05) {
        EACH(ZERO)
        double start = seconds();
        for (long i = 0; i < steps; i++) { EACH(COUNT) }
        double rate = 11.0 * steps / (seconds() - start);
        if (rate > best) best = rate;
    }
    return best / 1e9;
}

void kw_null(const void *x, void *y, long n) { (void)x, (void)y, (void)n; }

int main(void) {
    static const size_t sizes[] = {256 << 10, 4 << 20, 64 << 20};
    char *memory = (char *)aligned_alloc(4096, 64 << 20);
    if (!memory) return 1;
    memset(memory, 1, 64 << 20);
    for (int i = 0; i < 3; i++)
        for (int copying = 0; copying < 2; copying++)
            printf("%s_%zu %.6g\n", copying ? "copy" : "read", sizes[i], bandwidth(memory, sizes[i], copying));
    printf("fma %.6g\n", fma_rate());
    printf("instructions %.6g\n", instruction_rate());
    return 0;
}
