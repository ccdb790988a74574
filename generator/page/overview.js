/* What a plan comes to: its main numbers, where the step's time goes, and the text that --plan prints. */

/* Main numbers by name, as texts. */
function facts(p) {
	const worst = Math.max(...p.stages.map((st) => st.arena));
	const tokens = p.global * p.S;
	return [
		["parameters", commas(p.params_total)],
		["active for a token", commas(p.params_active)],
		["ranks", commas(p.world)],
		["pipeline x data, experts over", `${commas(p.stages.length)} x ${commas(group_of(p, "data").size)}, ${
			commas(group_of(p, "expert").size)}`],
		["tokens a step", commas(tokens)],
		["microbatches a rank and step", commas(p.microbatches)],
		["FLOPs a token", short(p.flops_token)],
		["FLOPs a step", short(p.flops_token * tokens)],
		["memory of the fullest rank", bytes(worst) + (p.memory_gib > 0 ? ` of ${p.memory_gib} GiB` : "")],
		["expected step", p.step > 0 ? seconds(p.step) : "unknown: ask trainer bench"],
		["expected tokens/s a rank", p.step > 0 ? commas(tokens / p.step / p.world) : "unknown"],
		["expected use of the peak", p.step > 0 && p.tflops > 0
			? percent(p.flops_token * tokens / p.step / p.world / (p.tflops * 1e12)) : "unknown"],
		["pipeline bubble", p.bubble_shown ? percent(p.bubble) : "none: one stage"],
		["kernel instances", commas(p.kernels.size)],
	];
}

function overview(p, box) {
	box.append(el("div", { class: "cards" }, facts(p).map(([name, value]) =>
		el("div", { class: "card" }, el("span", null, name), el("b", null, value)))));
	if (p.refused)
		box.append(el("p", { class: "warn" }, `A build refuses this plan: ${p.refused}`));
	if (p.step > 0)
		box.append(el("h3", null, "Where an expected step goes"), time_bar(p),
			el("p", { class: "dim" }, "The sum of its launches at rates that were measured, on the stage that takes ",
				"longest; what is sent takes its time alone on the link."));
	box.append(el("details", { "aria-label": "PLAN.txt" }, el("summary", null, "The same as text: PLAN.txt"), el("pre", { tabindex: "0" }, p.plan)));
}

function time_bar(p) {
	const parts = p.parts.map((name, i) => [name, p.seconds[i], i]).filter((x) => x[1] > 0);
	return el("div", null,
		el("div", { class: "stack", role: "list", "aria-label": "Parts of the expected step" }, parts.map(([name, s, i]) =>
			with_tip(el("span", { role: "listitem", tabindex: "0", style: `flex-grow:${s};background:var(--c${i})`,
				"aria-label": `${name}: ${seconds(s)}, ${percent(s / p.step)}` }),
				() => `${name}: ${seconds(s)}\n${percent(s / p.step)} of the step`))),
		legend(parts.map(([name, s, i]) => [`var(--c${i})`, `${name} ${percent(s / p.step)}`])));
}

/* Two plans: what differs. */
function differences(a, b) {
	const of_b = new Map(facts(b));
	const rows = facts(a).map(([name, value]) => [name, value, of_b.get(name), value === of_b.get(name) ? "" : "differs"]);
	for (const region of a.regions) {
		const most = (p) => Math.max(...p.stages.map((st) => st.regions[region].bytes));
		if (most(a) || most(b))
			rows.push([`memory: ${region}`, bytes(most(a)), bytes(most(b)), most(a) === most(b) ? ""
				: `${most(b) > most(a) ? "+" : "−"}${bytes(Math.abs(most(b) - most(a)))}`]);
	}
	a.parts.forEach((name, i) => {
		if (a.seconds[i] > 0 || b.seconds[i] > 0)
			rows.push([`time: ${name}`, seconds(a.seconds[i]), seconds(b.seconds[i]), a.seconds[i] === b.seconds[i] ? ""
				: `${b.seconds[i] > a.seconds[i] ? "+" : "−"}${seconds(Math.abs(b.seconds[i] - a.seconds[i]))}`]);
	});
	return table("What differs between the two plans", [["", ""], [`A: ${a.name}`, "n"], [`B: ${b.name}`, "n"], ["B less A", "n"]],
		rows);
}
