// Compiled where rdma-core's headers are installed: our declarations lie in memory as theirs do.
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdio>

#include "fhbn/rdma/ibverbs_abi.hpp"
#include "fhbn/rdma/mlx5dv_abi.hpp"
#include "fhbn/rdma/wqe.hpp"

namespace rdma = lamina::fhbn::rdma;
namespace abi = rdma::abi;

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs))
#define SAME_PLACE(ours, our_field, theirs, their_field)                      \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) && \
                sizeof(decltype(ours::our_field)) == sizeof(decltype(theirs::their_field)))
#define SAME_VALUE(ours, theirs) static_assert(static_cast<unsigned>(ours) == static_cast<unsigned>(theirs))

SAME_SIZE(abi::GidEntry, ibv_gid_entry);
SAME_PLACE(abi::GidEntry, gid, ibv_gid_entry, gid);
SAME_PLACE(abi::GidEntry, index, ibv_gid_entry, gid_index);
SAME_PLACE(abi::GidEntry, port, ibv_gid_entry, port_num);
SAME_PLACE(abi::GidEntry, type, ibv_gid_entry, gid_type);

// Newer headers have more behind `flags`, which the function that is called here does not fill in.
static_assert(sizeof(abi::PortAttributes) <= sizeof(ibv_port_attr));
SAME_PLACE(abi::PortAttributes, state, ibv_port_attr, state);
SAME_PLACE(abi::PortAttributes, active_mtu, ibv_port_attr, active_mtu);
SAME_PLACE(abi::PortAttributes, gids, ibv_port_attr, gid_tbl_len);
SAME_PLACE(abi::PortAttributes, max_message_bytes, ibv_port_attr, max_msg_sz);
SAME_PLACE(abi::PortAttributes, lid, ibv_port_attr, lid);
SAME_PLACE(abi::PortAttributes, link_layer, ibv_port_attr, link_layer);
SAME_PLACE(abi::PortAttributes, flags, ibv_port_attr, flags);

SAME_SIZE(abi::ProtectionDomain, ibv_pd);
SAME_SIZE(abi::MemoryRegion, ibv_mr);
SAME_PLACE(abi::MemoryRegion, lkey, ibv_mr, lkey);
SAME_PLACE(abi::MemoryRegion, rkey, ibv_mr, rkey);

SAME_SIZE(abi::Capacity, ibv_qp_cap);
SAME_PLACE(abi::Capacity, send_requests, ibv_qp_cap, max_send_wr);
SAME_PLACE(abi::Capacity, send_pieces, ibv_qp_cap, max_send_sge);
SAME_PLACE(abi::Capacity, inline_bytes, ibv_qp_cap, max_inline_data);
SAME_SIZE(abi::QueuePairInit, ibv_qp_init_attr);
SAME_PLACE(abi::QueuePairInit, send_completions, ibv_qp_init_attr, send_cq);
SAME_PLACE(abi::QueuePairInit, receive_completions, ibv_qp_init_attr, recv_cq);
SAME_PLACE(abi::QueuePairInit, capacity, ibv_qp_init_attr, cap);
SAME_PLACE(abi::QueuePairInit, type, ibv_qp_init_attr, qp_type);
SAME_PLACE(abi::QueuePairInit, signal_all, ibv_qp_init_attr, sq_sig_all);

SAME_SIZE(abi::GlobalRoute, ibv_global_route);
SAME_PLACE(abi::GlobalRoute, destination, ibv_global_route, dgid);
SAME_PLACE(abi::GlobalRoute, source_index, ibv_global_route, sgid_index);
SAME_PLACE(abi::GlobalRoute, hop_limit, ibv_global_route, hop_limit);
SAME_SIZE(abi::AddressVector, ibv_ah_attr);
SAME_PLACE(abi::AddressVector, global, ibv_ah_attr, grh);
SAME_PLACE(abi::AddressVector, destination_lid, ibv_ah_attr, dlid);
SAME_PLACE(abi::AddressVector, is_global, ibv_ah_attr, is_global);
SAME_PLACE(abi::AddressVector, port, ibv_ah_attr, port_num);

SAME_SIZE(abi::QueuePairAttributes, ibv_qp_attr);
SAME_PLACE(abi::QueuePairAttributes, state, ibv_qp_attr, qp_state);
SAME_PLACE(abi::QueuePairAttributes, path_mtu, ibv_qp_attr, path_mtu);
SAME_PLACE(abi::QueuePairAttributes, receive_psn, ibv_qp_attr, rq_psn);
SAME_PLACE(abi::QueuePairAttributes, send_psn, ibv_qp_attr, sq_psn);
SAME_PLACE(abi::QueuePairAttributes, destination, ibv_qp_attr, dest_qp_num);
SAME_PLACE(abi::QueuePairAttributes, access, ibv_qp_attr, qp_access_flags);
SAME_PLACE(abi::QueuePairAttributes, path, ibv_qp_attr, ah_attr);
SAME_PLACE(abi::QueuePairAttributes, pkey_index, ibv_qp_attr, pkey_index);
SAME_PLACE(abi::QueuePairAttributes, reads_issued, ibv_qp_attr, max_rd_atomic);
SAME_PLACE(abi::QueuePairAttributes, reads_served, ibv_qp_attr, max_dest_rd_atomic);
SAME_PLACE(abi::QueuePairAttributes, not_ready_timer, ibv_qp_attr, min_rnr_timer);
SAME_PLACE(abi::QueuePairAttributes, port, ibv_qp_attr, port_num);
SAME_PLACE(abi::QueuePairAttributes, timeout, ibv_qp_attr, timeout);
SAME_PLACE(abi::QueuePairAttributes, retries, ibv_qp_attr, retry_cnt);
SAME_PLACE(abi::QueuePairAttributes, not_ready_retries, ibv_qp_attr, rnr_retry);

SAME_SIZE(abi::Piece, ibv_sge);
SAME_PLACE(abi::Piece, address, ibv_sge, addr);
SAME_PLACE(abi::Piece, length, ibv_sge, length);
SAME_PLACE(abi::Piece, lkey, ibv_sge, lkey);
SAME_SIZE(abi::SendRequest, ibv_send_wr);
SAME_PLACE(abi::SendRequest, id, ibv_send_wr, wr_id);
SAME_PLACE(abi::SendRequest, next, ibv_send_wr, next);
SAME_PLACE(abi::SendRequest, pieces, ibv_send_wr, sg_list);
SAME_PLACE(abi::SendRequest, piece_count, ibv_send_wr, num_sge);
SAME_PLACE(abi::SendRequest, opcode, ibv_send_wr, opcode);
SAME_PLACE(abi::SendRequest, flags, ibv_send_wr, send_flags);
SAME_PLACE(abi::SendRequest, remote_address, ibv_send_wr, wr.rdma.remote_addr);
SAME_PLACE(abi::SendRequest, rkey, ibv_send_wr, wr.rdma.rkey);

SAME_SIZE(abi::Completion, ibv_wc);
SAME_PLACE(abi::Completion, id, ibv_wc, wr_id);
SAME_PLACE(abi::Completion, status, ibv_wc, status);
SAME_PLACE(abi::Completion, vendor_error, ibv_wc, vendor_err);
SAME_PLACE(abi::Completion, queue_pair, ibv_wc, qp_num);

SAME_SIZE(abi::ContextCalls, ibv_context_ops);
SAME_PLACE(abi::ContextCalls, poll, ibv_context_ops, poll_cq);
SAME_PLACE(abi::ContextCalls, post, ibv_context_ops, post_send);
SAME_SIZE(abi::Context, ibv_context);
SAME_PLACE(abi::Context, device, ibv_context, device);
SAME_PLACE(abi::Context, calls, ibv_context, ops);
SAME_PLACE(abi::CompletionQueue, entries, ibv_cq, cqe);
SAME_PLACE(abi::QueuePair, number, ibv_qp, qp_num);

SAME_VALUE(abi::kGidRoceV2, IBV_GID_TYPE_ROCE_V2);
SAME_VALUE(abi::kPortActive, IBV_PORT_ACTIVE);
SAME_VALUE(abi::kLinkLayerEthernet, IBV_LINK_LAYER_ETHERNET);
SAME_VALUE(abi::kRouteRequired, IBV_QPF_GRH_REQUIRED);
SAME_VALUE(abi::kAccessLocalWrite, IBV_ACCESS_LOCAL_WRITE);
SAME_VALUE(abi::kAccessRemoteWrite, IBV_ACCESS_REMOTE_WRITE);
SAME_VALUE(abi::kReliableConnected, IBV_QPT_RC);
SAME_VALUE(abi::kStateInit, IBV_QPS_INIT);
SAME_VALUE(abi::kStateReadyToReceive, IBV_QPS_RTR);
SAME_VALUE(abi::kStateReadyToSend, IBV_QPS_RTS);
SAME_VALUE(abi::kSetState, IBV_QP_STATE);
SAME_VALUE(abi::kSetAccess, IBV_QP_ACCESS_FLAGS);
SAME_VALUE(abi::kSetPkeyIndex, IBV_QP_PKEY_INDEX);
SAME_VALUE(abi::kSetPort, IBV_QP_PORT);
SAME_VALUE(abi::kSetPath, IBV_QP_AV);
SAME_VALUE(abi::kSetPathMtu, IBV_QP_PATH_MTU);
SAME_VALUE(abi::kSetTimeout, IBV_QP_TIMEOUT);
SAME_VALUE(abi::kSetRetries, IBV_QP_RETRY_CNT);
SAME_VALUE(abi::kSetNotReadyRetries, IBV_QP_RNR_RETRY);
SAME_VALUE(abi::kSetReceivePsn, IBV_QP_RQ_PSN);
SAME_VALUE(abi::kSetReadsIssued, IBV_QP_MAX_QP_RD_ATOMIC);
SAME_VALUE(abi::kSetNotReadyTimer, IBV_QP_MIN_RNR_TIMER);
SAME_VALUE(abi::kSetSendPsn, IBV_QP_SQ_PSN);
SAME_VALUE(abi::kSetReadsServed, IBV_QP_MAX_DEST_RD_ATOMIC);
SAME_VALUE(abi::kSetDestination, IBV_QP_DEST_QPN);
SAME_VALUE(abi::kRdmaWrite, IBV_WR_RDMA_WRITE);
SAME_VALUE(abi::kSuccess, IBV_WC_SUCCESS);
SAME_VALUE(abi::kLocalLength, IBV_WC_LOC_LEN_ERR);
SAME_VALUE(abi::kLocalOperation, IBV_WC_LOC_QP_OP_ERR);
SAME_VALUE(abi::kLocalProtection, IBV_WC_LOC_PROT_ERR);
SAME_VALUE(abi::kFlushed, IBV_WC_WR_FLUSH_ERR);
SAME_VALUE(abi::kRemoteInvalid, IBV_WC_REM_INV_REQ_ERR);
SAME_VALUE(abi::kRemoteAccess, IBV_WC_REM_ACCESS_ERR);
SAME_VALUE(abi::kRetryExceeded, IBV_WC_RETRY_EXC_ERR);
SAME_VALUE(abi::kSignalled, IBV_SEND_SIGNALED);
SAME_VALUE(abi::kInline, IBV_SEND_INLINE);

SAME_SIZE(abi::Mlx5QueuePair, mlx5dv_qp);
SAME_PLACE(abi::Mlx5QueuePair, doorbell_records, mlx5dv_qp, dbrec);
SAME_PLACE(abi::Mlx5QueuePair, send, mlx5dv_qp, sq);
SAME_PLACE(abi::Mlx5QueuePair, send.memory, mlx5dv_qp, sq.buf);
SAME_PLACE(abi::Mlx5QueuePair, send.count, mlx5dv_qp, sq.wqe_cnt);
SAME_PLACE(abi::Mlx5QueuePair, send.stride, mlx5dv_qp, sq.stride);
SAME_PLACE(abi::Mlx5QueuePair, receive, mlx5dv_qp, rq);
SAME_PLACE(abi::Mlx5QueuePair, registers, mlx5dv_qp, bf);
SAME_PLACE(abi::Mlx5QueuePair, registers.address, mlx5dv_qp, bf.reg);
SAME_PLACE(abi::Mlx5QueuePair, registers.half_bytes, mlx5dv_qp, bf.size);
SAME_PLACE(abi::Mlx5QueuePair, wanted, mlx5dv_qp, comp_mask);
SAME_PLACE(abi::Mlx5QueuePair, uar_offset, mlx5dv_qp, uar_mmap_offset);

SAME_SIZE(abi::Mlx5CompletionQueue, mlx5dv_cq);
SAME_PLACE(abi::Mlx5CompletionQueue, entries, mlx5dv_cq, buf);
SAME_PLACE(abi::Mlx5CompletionQueue, doorbell_records, mlx5dv_cq, dbrec);
SAME_PLACE(abi::Mlx5CompletionQueue, count, mlx5dv_cq, cqe_cnt);
SAME_PLACE(abi::Mlx5CompletionQueue, entry_bytes, mlx5dv_cq, cqe_size);
SAME_PLACE(abi::Mlx5CompletionQueue, wanted, mlx5dv_cq, comp_mask);

// Newer versions have more objects, of which none is asked for.
static_assert(sizeof(abi::Mlx5Objects) >= sizeof(mlx5dv_obj));
SAME_PLACE(abi::Mlx5Objects, pair, mlx5dv_obj, qp.in);
SAME_PLACE(abi::Mlx5Objects, shown_pair, mlx5dv_obj, qp.out);
SAME_PLACE(abi::Mlx5Objects, completions, mlx5dv_obj, cq.in);
SAME_PLACE(abi::Mlx5Objects, shown_completions, mlx5dv_obj, cq.out);
SAME_VALUE(abi::kShowQueuePair, MLX5DV_OBJ_QP);
SAME_VALUE(abi::kShowCompletionQueue, MLX5DV_OBJ_CQ);

// What the NIC itself reads and writes.
SAME_SIZE(rdma::ControlSegment, mlx5_wqe_ctrl_seg);
SAME_PLACE(rdma::ControlSegment, index_opcode, mlx5_wqe_ctrl_seg, opmod_idx_opcode);
SAME_PLACE(rdma::ControlSegment, queue_segments, mlx5_wqe_ctrl_seg, qpn_ds);
SAME_PLACE(rdma::ControlSegment, flags, mlx5_wqe_ctrl_seg, fm_ce_se);
SAME_SIZE(rdma::RemoteAddressSegment, mlx5_wqe_raddr_seg);
SAME_PLACE(rdma::RemoteAddressSegment, address, mlx5_wqe_raddr_seg, raddr);
SAME_PLACE(rdma::RemoteAddressSegment, key, mlx5_wqe_raddr_seg, rkey);
SAME_SIZE(rdma::DataSegment, mlx5_wqe_data_seg);
SAME_PLACE(rdma::DataSegment, bytes, mlx5_wqe_data_seg, byte_count);
SAME_PLACE(rdma::DataSegment, key, mlx5_wqe_data_seg, lkey);
SAME_PLACE(rdma::DataSegment, address, mlx5_wqe_data_seg, addr);
SAME_VALUE(rdma::Opcode::kRdmaWrite, MLX5_OPCODE_RDMA_WRITE);
SAME_VALUE(rdma::Opcode::kNothing, MLX5_OPCODE_NOP);
SAME_VALUE(rdma::Completion::kRequested, MLX5_WQE_CTRL_CQ_UPDATE);
SAME_VALUE(rdma::kInline, MLX5_INLINE_SEG);
SAME_VALUE(rdma::kBlockBytes, MLX5_SEND_WQE_BB);

SAME_SIZE(rdma::CompletionEntry, mlx5_cqe64);
SAME_PLACE(rdma::CompletionEntry, opcode_queue, mlx5_cqe64, sop_drop_qpn);
SAME_PLACE(rdma::CompletionEntry, block, mlx5_cqe64, wqe_counter);
SAME_PLACE(rdma::CompletionEntry, kind_owner, mlx5_cqe64, op_own);
SAME_PLACE(rdma::CompletionEntry, vendor_syndrome, mlx5_err_cqe, vendor_err_synd);
SAME_PLACE(rdma::CompletionEntry, syndrome, mlx5_err_cqe, syndrome);
SAME_VALUE(rdma::CompletionKind::kRequest, MLX5_CQE_REQ);
SAME_VALUE(rdma::CompletionKind::kRequestError, MLX5_CQE_REQ_ERR);
SAME_VALUE(rdma::CompletionKind::kInvalid, MLX5_CQE_INVALID);
SAME_VALUE(rdma::Syndrome::kLocalLength, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
SAME_VALUE(rdma::Syndrome::kLocalOperation, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
SAME_VALUE(rdma::Syndrome::kLocalProtection, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
SAME_VALUE(rdma::Syndrome::kFlushed, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
SAME_VALUE(rdma::Syndrome::kLocalAccess, MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR);
SAME_VALUE(rdma::Syndrome::kRemoteInvalid, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
SAME_VALUE(rdma::Syndrome::kRemoteAccess, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
SAME_VALUE(rdma::Syndrome::kRemoteOperation, MLX5_CQE_SYNDROME_REMOTE_OP_ERR);
SAME_VALUE(rdma::Syndrome::kRetryExceeded, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
SAME_VALUE(rdma::Syndrome::kReceiverNotReady, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
SAME_VALUE(rdma::Syndrome::kRemoteAborted, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR);

SAME_VALUE(abi::kSendingRecord, MLX5_SND_DBR);

int main() { std::puts("the same"); }
