#include "attention/cuda/decode.h"
#include "attention/cuda/finish.cuh"
#include "attention/cuda/plan.cuh"
#include "attention/cuda/problem.hpp"
#include "attention/cuda/rows.cuh"
#include "cuda/runtime.hpp"

using namespace lamina::attention::cuda;

lamina_cuda_status lamina_cuda_workspace_bytes(const lamina_cuda_attention* attention, int32_t batch,
                                               size_t* bytes) {
  return guarded([&] {
    const Problem problem(attention);
    require(batch >= 0 && bytes != nullptr, "there is no batch to make room for");
    require_device();
    *bytes = Workspace::at(nullptr, problem.size(batch)).bytes;
  });
}

lamina_cuda_status lamina_cuda_plan(const lamina_cuda_attention* attention, const lamina_cuda_lists* lists,
                                    int32_t window, int32_t chunk, int32_t which,
                                    const lamina_cuda_workspace* workspace, lamina_cuda_stream stream) {
  return guarded([&] {
    const Problem problem(attention);
    require_lists(lists);
    require(window >= 0 && chunk >= 0, "the window or the chunk is negative");
    require(which == LAMINA_CUDA_PREVIOUS || which == LAMINA_CUDA_ALL,
            "`which` is neither the previous tokens nor all");
    require_device();
    if (lists->batch == 0) return;
    const Workspace work = problem.in(workspace, lists->batch);
    const std::int32_t kv_heads = problem.attention().kv_heads;
    const PlanArgs args{.lists = lists->offsets,
                        .requests = lists->batch,
                        .kv_heads = kv_heads,
                        .window = window,
                        .chunk = chunk,
                        .which = which == LAMINA_CUDA_ALL ? Which::kAll : Which::kPrevious,
                        .tile = problem.attend().tokens,
                        .workers = problem.workers(lists->batch),
                        .counters = static_cast<std::int64_t>(problem.passes()) * lists->batch * kv_heads,
                        .plan = work.plan,
                        .first = work.first,
                        .begin = work.begin,
                        .end = work.end,
                        .offset = work.offset,
                        .arrivals = work.arrivals};
    launch(reinterpret_cast<const void*>(&share_out), grid_of(1), kPlanThreads, kPlanSharedBytes, stream,
           args, "planning");
  });
}

lamina_cuda_status lamina_cuda_begin(const lamina_cuda_attention* attention, const lamina_cuda_arena* arena,
                                     const lamina_cuda_lists* lists, const void* q,
                                     const lamina_cuda_workspace* workspace,
                                     const lamina_cuda_partial* partial, lamina_cuda_stream stream) {
  return guarded([&] {
    const Problem problem(attention);
    const Arena where(arena, problem);
    require_lists(lists);
    require_device();
    if (lists->batch == 0) return;
    require_tensor(q, "q is missing or not aligned to 16 bytes");
    require_partial(partial);
    const Workspace work = problem.in(workspace, lists->batch);
    const std::int32_t workers = problem.workers(lists->batch);
    const std::int64_t units = static_cast<std::int64_t>(lists->batch) * attention->kv_heads;
    const AttendArgs args{.q = q,
                          .rows = {where.k, where.v, where.slot_bytes, problem.row_bytes()},
                          .head_bytes = where.head_bytes,
                          .slots = lists->slots,
                          .heads = attention->heads,
                          .group = problem.group(),
                          .head_dim = attention->head_dim,
                          .value_dim = problem.value_dim(),
                          .scoring = problem.scoring(),
                          .plan = work.plan,
                          .first = work.first,
                          .requests = {work.offset, work.begin, work.end, lists->batch},
                          .arrivals = work.arrivals,
                          .part_lse = work.part_lse,
                          .part_out = work.part_out,
                          .parts = part_count(units, workers),
                          .out = partial->out,
                          .lse = partial->lse};
    launch(problem.attend().entry, grid_of(problem.passes(), workers), problem.attend().threads,
           problem.attend().shared_bytes, stream, args, "attending");
  });
}

lamina_cuda_status lamina_cuda_finish(const lamina_cuda_attention* attention, const lamina_cuda_arena* arena,
                                      const lamina_cuda_lists* lists, const void* q, const void* k,
                                      const void* v, const float* sinks, const lamina_cuda_partial* partial,
                                      void* out, lamina_cuda_stream stream) {
  return guarded([&] {
    const Problem problem(attention);
    const Arena where(arena, problem);
    require_lists(lists);
    require_device();
    if (lists->batch == 0) return;
    require_tensor(q, "q is missing or not aligned to 16 bytes");
    require_rows(problem, k, v);
    require_tensor(out, "out is missing or not aligned to 16 bytes");
    require_partial(partial);
    const FinishArgs args{.q = q,
                          .new_k = k,
                          .new_v = problem.latent() ? nullptr : v,
                          .lists = lists->offsets,
                          .slots = lists->slots,
                          .out = partial->out,
                          .lse = partial->lse,
                          .sinks = sinks,
                          .result = out,
                          .k = where.k,
                          .v = where.v,
                          .slot_bytes = where.slot_bytes,
                          .head_bytes = where.head_bytes,
                          .heads = attention->heads,
                          .group = problem.group(),
                          .head_dim = attention->head_dim,
                          .value_dim = problem.value_dim(),
                          .scoring = problem.scoring()};
    const std::int32_t slices = (problem.group() + kFinishHeads - 1) / kFinishHeads;
    launch(problem.kernels().finish, grid_of(lists->batch, attention->kv_heads * slices), kFinishThreads, 0,
           stream, args, "finishing");
  });
}

lamina_cuda_status lamina_cuda_partial_of(const lamina_cuda_attention* attention,
                                          const lamina_cuda_arena* arena, const lamina_cuda_lists* lists,
                                          int32_t window, int32_t chunk, const void* q,
                                          const lamina_cuda_workspace* workspace,
                                          const lamina_cuda_partial* partial, lamina_cuda_stream stream) {
  const lamina_cuda_status planned =
      lamina_cuda_plan(attention, lists, window, chunk, LAMINA_CUDA_ALL, workspace, stream);
  if (planned != LAMINA_CUDA_OK) return planned;
  return lamina_cuda_begin(attention, arena, lists, q, workspace, partial, stream);
}

lamina_cuda_status lamina_cuda_combine(const lamina_cuda_attention* attention, int32_t batch,
                                       const lamina_cuda_partial* first, const lamina_cuda_partial* second,
                                       const lamina_cuda_partial* result, lamina_cuda_stream stream) {
  return guarded([&] {
    const Problem problem(attention);
    require(batch >= 0, "the batch is negative");
    require_device();
    if (batch == 0) return;
    for (const lamina_cuda_partial* partial : {first, second, result}) require_partial(partial);
    const std::int64_t rows = static_cast<std::int64_t>(batch) * problem.attention().heads;
    constexpr int kRows = kCombineThreads / 32;
    const CombineArgs args{first->out,  first->lse,  second->out, second->lse,
                           result->out, result->lse, rows,        problem.value_dim()};
    launch(reinterpret_cast<const void*>(&combine), grid_of((rows + kRows - 1) / kRows), kCombineThreads, 0,
           stream, args, "combining");
  });
}

lamina_cuda_status lamina_cuda_append(const lamina_cuda_attention* attention, const lamina_cuda_arena* arena,
                                      const void* k, const void* v, const int32_t* slots, int64_t tokens,
                                      lamina_cuda_stream stream) {
  return guarded([&] {
    const Problem problem(attention);
    const Arena where(arena, problem);
    require(tokens >= 0, "the number of tokens is negative");
    require_device();
    if (tokens == 0) return;
    require_rows(problem, k, v);
    require(slots != nullptr, "the slots are missing");
    const std::int32_t kv_heads = problem.attention().kv_heads;
    const std::int64_t chunks = tokens * kv_heads * (problem.row_bytes() / 16);
    const std::int64_t blocks = (chunks + kAppendThreads - 1) / kAppendThreads;
    require(blocks <= INT32_MAX, "these are too many tokens for one call");
    const AppendArgs args{k,
                          problem.latent() ? nullptr : v,
                          slots,
                          where.k,
                          where.v,
                          where.slot_bytes,
                          where.head_bytes,
                          tokens,
                          kv_heads,
                          problem.row_bytes()};
    launch(reinterpret_cast<const void*>(&append), grid_of(blocks), kAppendThreads, 0, stream, args,
           "appending");
  });
}

lamina_cuda_status lamina_cuda_allocate_managed(size_t bytes, void** memory) {
  return guarded([&] {
    require(bytes > 0 && memory != nullptr, "managed memory needs a size and somewhere to put its address");
    require_device();
    check(cudaMallocManaged(memory, bytes, cudaMemAttachGlobal), "allocating managed memory");
  });
}

lamina_cuda_status lamina_cuda_free_managed(void* memory) {
  return guarded([&] { check(cudaFree(memory), "freeing managed memory"); });
}
