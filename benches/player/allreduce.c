/* MPI_Allreduce in place, as a C program calls it: the peer of `cargo xtask bench allreduce`.
 *
 * It answers the same lines as `bench-player allreduce` and measures in the same way
 * (src/allreduce.rs): a barrier, then a batch of operations of at least 2 ms, timed by its slowest
 * rank; the median of the batches. How many operations that takes is found once for a size, by the
 * best of three. After `--late-ms MS` rank 0 begins every batch so much later, and the clock starts
 * then. */

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double BATCH = 2e-3;
enum { FEWEST = 3, MOST = 500 };

static float *numbers;
static int elements = -1;
static int rank, ranks;
/* Operations of a batch, and the seconds that they take. */
static int operations;
static double took;
/* Seconds by which rank 0 is late. */
static double late;

static void reduce(void)
{
    MPI_Allreduce(MPI_IN_PLACE, numbers, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double largest(double value)
{
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return value;
}

/* Small integers, which a float adds exactly. */
static float known(int of, int place)
{
    return (float)((place + 7 * of) % 1009);
}

/* Makes room, reduces known numbers and says whether every rank was right; leaves zeros. */
static int prepare(int count)
{
    free(numbers);
    numbers = malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
    if (numbers == NULL) {
        fprintf(stderr, "error: no memory for %d numbers\n", count);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    elements = count;
    for (int i = 0; i < count; i++)
        numbers[i] = known(rank, i);
    reduce();
    double wrong = 0;
    for (int i = 0; i < count; i++) {
        float sum = 0;
        for (int of = 0; of < ranks; of++)
            sum += known(of, i);
        wrong += numbers[i] != sum;
        numbers[i] = 0;
    }
    return largest(wrong) == 0;
}

/* Seconds of the slowest rank for a batch. */
static double batch(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime() + late;
    if (rank == 0 && late > 0) {
        struct timespec pause = {(time_t)late, (long)(1e9 * (late - (double)(time_t)late))};
        nanosleep(&pause, NULL);
    }
    for (int i = 0; i < operations; i++)
        reduce();
    return largest(MPI_Wtime() - start);
}

static void find_batch(void)
{
    for (operations = 1;; operations *= 2) {
        took = batch();
        for (int again = 0; again < 2; again++) {
            double seconds = batch();
            took = seconds < took ? seconds : took;
        }
        if (took >= BATCH)
            return;
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sample(double seconds, int correct)
{
    double wanted = seconds / took;
    int batches = wanted < FEWEST ? FEWEST : wanted > MOST ? MOST : (int)wanted;
    double times[MOST];
    for (int i = 0; i < batches; i++)
        times[i] = batch() / operations;
    qsort(times, (size_t)batches, sizeof(double), ascending);
    if (rank == 0) {
        printf("{\"event\": \"sample\", \"seconds\": %.9g, \"batches\": %d, \"operations\": %d, "
               "\"correct\": %s}\n",
               times[batches / 2], batches, operations, correct ? "true" : "false");
        fflush(stdout);
    }
}

/* Reads the number that belongs to a key in a line of JSON, in whatever order the keys are. */
static int field(const char *line, const char *key, double *number)
{
    const char *found = strstr(line, key);
    return found != NULL && sscanf(found + strlen(key), " : %lf", number) == 1 && *number >= 0;
}

/* Reads {"elements": N, "seconds": S}. */
static int understood(const char *line, double words[2])
{
    return line[strspn(line, " ")] == '{'
           && field(line, "\"elements\"", &words[0]) && words[0] <= INT_MAX
           && field(line, "\"seconds\"", &words[1]) && words[1] < 1e6;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (argc == 3 && strcmp(argv[1], "--late-ms") == 0)
        late = atof(argv[2]) / 1e3;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(version, &length);
        for (int i = 0; i < length; i++)
            if (version[i] < ' ' || version[i] == '"' || version[i] == '\\')
                version[i] = ' ';
        printf("{\"event\": \"ready\", \"ranks\": %d, \"backend\": \"mpi\", \"version\": \"%.*s\"}\n",
               ranks, length, version);
        fflush(stdout);
    }
    int correct = 0;
    for (;;) {
        double words[2] = {-1, 0};
        char line[256];
        if (rank == 0 && fgets(line, sizeof line, stdin) != NULL && !understood(line, words)) {
            line[strcspn(line, "\n")] = '\0';
            fprintf(stderr, "error: asked for `%s`\n", line);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        MPI_Bcast(words, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (words[0] < 0)
            break;
        if ((int)words[0] != elements) {
            correct = prepare((int)words[0]);
            find_batch();
        }
        sample(words[1], correct);
    }
    if (rank == 0) {
        printf("{\"event\": \"done\"}\n");
        fflush(stdout);
    }
    free(numbers);
    MPI_Finalize();
    return 0;
}
