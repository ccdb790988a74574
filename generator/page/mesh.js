/* The mesh: ranks as a grid, the groups that they act in, and who owns what. */

const GROUP_DOES = {
	world: "all ranks",
	data: "same layers and dense weights, other data; they sum dense gradients and share the optimizer's states of them",
	expert: "one set of experts between them; they exchange the rows of routed tokens",
	expert_data: "the same experts, other data; they sum the experts' gradients and share the optimizer's states of them",
	pipeline: "one rank of each stage; activations go along it, gradients back",
};

function experts_of(p, kind, rank) {
	const m = members(p, "expert", rank), each = kind.experts / m.length, at = m.indexOf(rank);
	return [at * each, (at + 1) * each - 1];
}

/* Lines that say what a rank is and has. */
function rank_facts(p, rank) {
	const s = stage_of(p, rank), st = p.stages[s];
	const rows = [["stage", `${s} of ${p.stages.length}: ${st.layers}`], ["memory", bytes(st.arena)]];
	for (const k of p.kinds)
		if (k.experts && k.layers.some((l) => st.index.has(l))) {
			const [first, last] = experts_of(p, k, rank);
			rows.push([`experts of ${k.name}`, `${first} .. ${last} of ${k.experts}, in layers ${
				ranges(k.layers.filter((l) => st.index.has(l)))}`]);
		}
	for (const g of p.groups)
		if (g.name !== "world") {
			const m = members(p, g.name, rank);
			rows.push([`${g.name} group`, `ranks ${ranges(m)}; place ${m.indexOf(rank)} of ${m.length}`]);
		}
	return rows;
}

/* Which ranks hold a parameter, and how much of it. */
function ownership(p) {
	const rows = [];
	for (const t of p.tensors.values()) {
		if (t.class !== "param")
			continue;
		const s = p.stages.findIndex((st) => st.buffers.has(t.name));
		if (s < 0)
			continue;
		const b = p.stages[s].buffers.get(t.name), by_expert = t.hf.includes("%e");
		const g = b.group >= 0 ? p.groups[b.group] : null;
		rows.push([t.hf.replace("model.", ""), `[${t.dims.join(", ")}]${t.layers ? ` x ${t.layers} layers` : ""}`,
			by_expert ? `${commas(t.dims[0])} experts a rank, cut over the expert group`
				: "whole on each rank of its stage",
			g ? `${commas(g.size)} ranks (${g.name})` : "this rank alone", bytes(b.bytes),
			g ? `1/${g.size} of each state` : "all of each state"]);
	}
	return rows;
}

function mesh(p, box) {
	const stages = p.stages.length, per = Math.min(group_of(p, "data").size, p.ranks), expert = group_of(p, "expert").size;
	let lit = p.world > 1 ? (expert > 1 ? "expert" : stages > 1 ? "pipeline" : "data") : "world", chosen = 0, cell, cols;

	/* as wide as it can be, in whole expert groups */
	function lay_out(width) {
		const room = width - 64;
		cell = Math.max(9, Math.min(34, Math.floor(room / Math.min(per, 64))));
		cols = Math.max(1, Math.min(per, Math.floor(room / cell)));
		if (cols > expert)
			cols -= cols % expert;
		return Math.ceil(per / cols);
	}
	const gap = (col) => expert > 1 && expert < cols ? Math.floor(col / expert) * 4 : 0;
	function place(rank) {
		const s = Math.floor(rank / per), i = rank % per, rows = Math.ceil(per / cols);
		return [64 + (i % cols) * cell + gap(i % cols), 4 + s * (rows * cell + 10) + Math.floor(i / cols) * cell];
	}
	function rank_at(x, y) {
		for (let r = 0; r < p.ranks; r++) {
			const [cx, cy] = place(r);
			if (x >= cx && x < cx + cell && y >= cy && y < cy + cell)
				return r;
		}
		return -1;
	}
	const item = (r) => r < 0 ? null : { key: r, rank: r, text: `rank ${r}, stage ${stage_of(p, r)}\n${lit} group: ranks ${
		ranges(members(p, lit, r))}` };
	const view = figure({
		label: `Mesh of ${p.world} ranks: a row for each pipeline stage. Arrow keys go from rank to rank`,
		height: (w) => stages * (lay_out(w) * cell + 10) + 4,
		draw(c, v) {
			const at = v.item ? v.item.rank : chosen, group = new Set(members(p, lit, at));
			const back = color("soft"), text = color("text"), dim = color("dim"), accent = color("accent");
			c.textAlign = "left";
			for (let s = 0; s < stages; s++) {
				c.fillStyle = dim;
				c.fillText(stages > 1 ? `stage ${s}` : "ranks", 0, place(s * per)[1] + Math.min(cell, 20) / 2);
			}
			c.textAlign = "center";
			for (let r = 0; r < p.ranks; r++) {
				const [x, y] = place(r), on = group.has(r);
				c.fillStyle = on ? accent : back;
				c.fillRect(x + 0.5, y + 0.5, cell - 1.5, cell - 1.5);
				if (r === at) {
					c.strokeStyle = text;
					c.lineWidth = 2;
					c.strokeRect(x + 1, y + 1, cell - 2.5, cell - 2.5);
				}
				if (cell >= 20) {
					c.fillStyle = on ? color("panel") : dim;
					c.font = "11px system-ui, sans-serif";
					c.fillText(r, x + cell / 2, y + cell / 2 + 0.5);
				}
			}
		},
		hit: (x, y) => item(rank_at(x, y)),
		picked: (i) => i && choose(i.rank),
		key(event, v) {
			const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -cols, ArrowDown: cols, Home: -p.ranks, End: p.ranks }[event.key];
			if (!step)
				return false;
			choose(Math.max(0, Math.min(p.ranks - 1, chosen + step)));
			v.item = null;
			v.say(item(chosen).text.replace(/\n/g, "; "));
			return true;
		},
	});
	const does = el("p", { class: "dim" }), about = el("div");
	function choose(rank) {
		chosen = rank;
		about.replaceChildren(table(`Rank ${rank}`, [["", ""], ["", ""]], rank_facts(p, rank)));
		view.redraw();
	}
	function light(name) {
		lit = name;
		does.textContent = `${name}: ${GROUP_DOES[name] || ""}; ${commas(group_of(p, name).size)} ranks each.`;
		view.redraw();
	}
	box.append(
		el("div", { class: "bar" }, buttons("Group to light", p.groups.map((g) => [g.name, g.name]), lit, light)), does,
		el("figure", null, view.canvas, view.status, el("figcaption", null,
			"Hover over a rank, or go there with the arrow keys: the ranks of its group light up. A click keeps it. ",
			expert > 1 ? "Gaps are between expert groups, whose ranks follow one another, so that a node holds one." : "",
			p.ranks < p.world ? ` The first ${commas(p.ranks)} of ${commas(p.world)} ranks.` : "")),
		about,
		table_view("who owns which parameters", [["parameter", ""], ["shape on a rank", ""], ["where", ""],
			["copies on", ""], ["bytes of a layer", "n"], ["optimizer of a rank", ""]], () => ownership(p)),
		table_view("all ranks", [["rank", "n"], ["stage", "n"], ...p.groups.slice(1).map((g) => [g.name, ""]),
			...p.kinds.filter((k) => k.experts).map((k) => [`experts of ${k.name}`, ""])], () =>
			Array.from({ length: p.ranks }, (_, r) => [r, stage_of(p, r),
				...p.groups.slice(1).map((g) => ranges(members(p, g.name, r))),
				...p.kinds.filter((k) => k.experts).map((k) => experts_of(p, k, r).join(" .. "))])));
	light(lit);
	choose(0);
	box.plan_view = { ...box.plan_view, mesh: { view, place: (r) => { const [x, y] = place(r); return [x + cell / 2, y + cell / 2]; } } };
}
