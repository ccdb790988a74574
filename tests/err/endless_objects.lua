while true do rope {} end
