// Finds the data races of C++ with OpenMP. It is linked into a product whose source was compiled with -fopenmp and
// -fsanitize=thread, in place of libgomp and libtsan: it runs a team's threads in turn, on one real thread, and remembers
// who has accessed what since the last barrier. So what is found depends on no luck in scheduling, and one run finds a
// race whatever values it gives.
//
// Everything here is hidden in the product, but for what the worker calls at the end of this file: torch's own libgomp
// lies in the same process.

#include "tasks.h"

#define ANSWERS(TYPE, NAME, VALUE) \
  TYPE NAME() { return VALUE; }

extern "C" {

ANSWERS(int, omp_get_thread_num, self ? self->number : 0)
ANSWERS(int, omp_get_num_threads, self ? self->team->size : 1)
ANSWERS(int, omp_get_max_threads, running ? 1 : given_threads ? given_threads : wanted_threads)
ANSWERS(int, omp_get_num_procs, wanted_threads)
ANSWERS(int, omp_in_parallel, running != nullptr)
ANSWERS(int, omp_in_final, running && current->final_task)
ANSWERS(int, omp_get_dynamic, 0)
ANSWERS(int, omp_get_nested, most_levels > 1)
ANSWERS(int, omp_get_max_active_levels, most_levels)
ANSWERS(int, omp_get_supported_active_levels, 1)
ANSWERS(int, omp_get_active_level, running ? 1 : 0)
ANSWERS(int, omp_get_thread_limit, kTeam)
ANSWERS(int, omp_get_cancellation, 0)
ANSWERS(int, omp_get_proc_bind, 0)
ANSWERS(int, omp_get_num_places, 0)
ANSWERS(int, omp_get_num_teams, 1)
ANSWERS(int, omp_get_team_num, 0)
ANSWERS(int, omp_get_num_devices, 0)
ANSWERS(int, omp_get_default_device, 0)
ANSWERS(int, omp_get_initial_device, 0)
ANSWERS(int, omp_is_initial_device, 1)
ANSWERS(double, omp_get_wtime, now_s())
ANSWERS(double, omp_get_wtick, 1e-9)

int omp_get_level() {
  int level = 0;
  for (Team* at = team; at; at = at->outer) level++;
  return level;
}
int omp_get_team_size(int level) {
  Team* at = team;
  for (int above = omp_get_level() - level; at && above > 0; above--) at = at->outer;
  return level == 0 ? 1 : at && level > 0 ? at->size : -1;
}
int omp_get_ancestor_thread_num(int level) {
  int here = omp_get_level();
  if (level < 0 || level > here) return -1;
  Thread* at = self;
  for (; at && here > level; here--) at = at->team->outer_self;
  return at && level ? at->number : 0;
}
void omp_set_num_threads(int threads) { given_threads = threads > 0 ? threads : 1; }
void omp_set_dynamic(int) {}
void omp_set_nested(int nested) { most_levels = nested ? 2 : 1; }
void omp_set_max_active_levels(int levels) { most_levels = levels; }
void omp_set_schedule(int, int) {}
void omp_get_schedule(int* kind, int* chunk) { *kind = 2, *chunk = 1; }  // dynamic

// ---------------------------------------------------------------------------------------------- for the worker

// Before a call: how many threads a team has where the source does not say, in which order they run, which memory nobody
// can write, what this may take.
EXPORTED void kw_races_begin(int threads, int last_first, uint64_t quiet_low, uint64_t quiet_bytes, uint64_t bytes,
                             double seconds) {
  wanted_threads = threads, given_threads = 0, most_levels = 1, descending = last_first;
  quiet = {quiet_low, quiet_bytes};
  most_pages = bytes / (kPageCells * sizeof(Cell));
  deadline_s = now_s() + seconds;
  until_clock = 0, notes = 0, race_count = 0, region_count = 0;
  drop_pages();
}

// What was found since; it is forgotten here.
EXPORTED int kw_races_take(Race* found, int most) {
  int count = race_count < most ? race_count : most;
  memcpy(found, races, count * sizeof(Race));
  race_count = 0;
  return count;
}

EXPORTED uint64_t kw_races_notes() { return notes; }
EXPORTED uint64_t kw_races_regions() { return region_count; }

}  // extern "C"
