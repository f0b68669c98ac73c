const data = JSON.parse(document.getElementById('data').textContent);
header(data);
curvesSection(data);
evaluations(data);
settings(data);
trajectoriesSection(data);
document.body.dataset.ready = 'yes';
